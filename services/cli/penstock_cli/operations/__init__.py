"""The tools of an operator, which speak with NATS as the services do."""
