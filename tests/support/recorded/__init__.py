"""Recorded streams and what an earlier version left behind, ready to be replayed."""
