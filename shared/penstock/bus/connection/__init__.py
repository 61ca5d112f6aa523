"""The connection to NATS, and what supervises it: health, clock, leader, identity of streams."""
