"""The commands for operators. These commands connect to NATS, not to the HTTP API."""
