"""Scripted agents to put behind a server. Each runs in the environment of its framework."""
