"""Decodes agent servers' protocols and encodes clients' protocols, one folder per protocol."""
