"""Stores the records of workflows' runs in the stream JOURNAL, and reads them."""
