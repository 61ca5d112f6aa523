"""The tools of an operator. The tools connect to NATS, not to the HTTP API."""
