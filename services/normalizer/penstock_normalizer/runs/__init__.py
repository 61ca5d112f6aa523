"""Fold one run: wait for its frames, publish its events once, keep its records up to date."""
