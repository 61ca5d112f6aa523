"""The surface for AG-UI clients: their runs and threads."""
