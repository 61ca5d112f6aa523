"""Runs: what a caller may do with them, and how they are started, cancelled and decided."""
