"""Folds one run: queues its frames, publishes its events once, and updates its records."""
