"""Reads and writes what KV and RAW hold about runs, sessions, claims and legs."""
