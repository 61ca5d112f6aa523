"""Encodes canonical events into Agno's frames."""

from penstock.dialects.agno.encode.encoder import DIALECT, AgnoEncoder

__all__ = ["DIALECT", "AgnoEncoder"]
