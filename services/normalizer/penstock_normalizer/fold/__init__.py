"""The pure core: folds a run's source frames, in the order of RAW, into its canonical events."""
