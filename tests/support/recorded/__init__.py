"""Recorded streams and the data of earlier versions, ready to be replayed."""
