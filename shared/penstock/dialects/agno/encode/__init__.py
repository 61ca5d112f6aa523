"""Canonical events become frames of Agno."""

from penstock.dialects.agno.encode.encoder import AgnoEncoder

__all__ = ["AgnoEncoder"]
