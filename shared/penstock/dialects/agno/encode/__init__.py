"""Canonical events become frames of Agno."""

from penstock.dialects.agno.encode.encoder import DIALECT, AgnoEncoder

__all__ = ["DIALECT", "AgnoEncoder"]
