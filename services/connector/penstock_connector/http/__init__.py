"""HTTP to agent servers: one connection for each request, and no pool of connections."""
