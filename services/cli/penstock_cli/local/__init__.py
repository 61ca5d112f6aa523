"""Run `penstock up`: every service in this process, a NATS server, and demo agents."""
