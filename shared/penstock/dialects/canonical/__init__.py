"""The canonical dialect: every event with all its fields."""

from penstock.dialects.canonical.encode import CanonicalEncoder

__all__ = ["CanonicalEncoder"]
