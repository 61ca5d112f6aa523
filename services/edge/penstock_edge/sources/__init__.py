"""Sources read the messages of runs, sessions and many runs from the bus."""
