"""Decodes and encodes the events of AG-UI, the protocol between agents and their frontends."""
