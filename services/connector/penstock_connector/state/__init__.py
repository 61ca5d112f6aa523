"""Reads and writes the data in KV and RAW about runs, sessions, claims and legs."""
