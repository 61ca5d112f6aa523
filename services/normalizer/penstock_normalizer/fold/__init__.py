"""The pure core: a run's source frames, in the order of RAW, to its canonical events."""
