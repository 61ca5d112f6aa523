"""The normalizer: the service that makes the canonical events of all runs from source frames."""
