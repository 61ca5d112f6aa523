"""Servers that misbehave, services that pretend, clocks and networks that lie."""
