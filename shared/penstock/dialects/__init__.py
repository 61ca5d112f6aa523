"""Decodes the protocols of agent servers and encodes the protocols of clients.

Each protocol has a folder.
"""
