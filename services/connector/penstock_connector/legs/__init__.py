"""Legs: each sends one request to an agent server, and stores the response verbatim on the bus."""
