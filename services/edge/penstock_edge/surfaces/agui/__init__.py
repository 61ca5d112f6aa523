"""The surface for AG-UI clients: agents, runs and threads."""
