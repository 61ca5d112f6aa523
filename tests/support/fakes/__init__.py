"""Fake servers that misbehave, stand-ins for services, wrong clocks and faulty networks."""
