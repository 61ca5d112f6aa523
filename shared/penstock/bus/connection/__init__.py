"""Connects to NATS, and supervises the connection: health, clock, leader, identity of streams."""
