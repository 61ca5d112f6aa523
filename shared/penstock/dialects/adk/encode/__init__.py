"""Canonical events become events of ADK."""

from penstock.dialects.adk.encode.encoder import AdkEncoder

__all__ = ["AdkEncoder"]
