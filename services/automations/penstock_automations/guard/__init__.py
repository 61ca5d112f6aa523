"""Refuses connections to addresses that a webhook must not reach, at the socket."""
