"""Erases the content of runs that have ended."""
