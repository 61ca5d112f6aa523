"""Runs: starting, cancelling and deciding runs, and checking what a caller may do with a run."""
