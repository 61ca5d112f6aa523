"""HTTP to agent servers: each request has its own connection, and there is no pool."""
