"""Folds one run: queues the frames, publishes the events once, and updates the run's records."""
