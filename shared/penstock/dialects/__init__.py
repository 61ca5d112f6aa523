"""Decodes the protocols of agent servers and encodes those of clients, one folder per protocol."""
