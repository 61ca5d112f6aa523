"""Reads streams: by direct gets, by following a run, and by pull consumers."""
