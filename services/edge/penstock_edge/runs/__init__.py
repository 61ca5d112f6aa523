"""Runs: started, cancelled and decided on behalf of a caller who is allowed to."""
