"""Does on the bus what decisions ask for. Each effect is harmless when it is repeated."""
