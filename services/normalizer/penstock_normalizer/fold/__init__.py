"""Folds a run's source frames, in the order of RAW, into the run's canonical events. Pure."""
