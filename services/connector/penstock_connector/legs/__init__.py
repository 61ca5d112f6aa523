"""Legs: one request to an agent server each, its answer put on the bus verbatim."""
