"""Protocols of agent servers and of clients: pure decoders and encoders, one folder each."""
