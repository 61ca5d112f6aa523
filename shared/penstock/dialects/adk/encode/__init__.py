"""Encodes canonical events into ADK's events."""

from penstock.dialects.adk.encode.encoder import DIALECT, AdkEncoder

__all__ = ["DIALECT", "AdkEncoder"]
