"""The surface for AG-UI clients: runs and threads."""
