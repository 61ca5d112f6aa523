"""Sources: the messages of runs, sessions and many runs, read from the bus."""
