"""The console: the service that serves the pages on which people follow runs and decide."""
