"""The normalizer makes the canonical events of every run, in one order."""
