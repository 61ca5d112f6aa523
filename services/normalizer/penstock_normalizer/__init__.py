"""The normalizer: the one order and meaning of every run."""
