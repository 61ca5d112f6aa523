"""Streams: one reading that many clients share, and the responses that write it to each client."""
