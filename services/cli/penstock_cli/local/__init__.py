"""`penstock up`: every service in this process, with a NATS server and demo agents beside it."""
