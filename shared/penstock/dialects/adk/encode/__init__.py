"""Canonical events become events of ADK."""

from penstock.dialects.adk.encode.encoder import DIALECT, AdkEncoder

__all__ = ["DIALECT", "AdkEncoder"]
