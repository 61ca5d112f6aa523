"""The canonical dialect, which shows every event with all its fields."""

from penstock.dialects.canonical.encode import CanonicalEncoder

__all__ = ["CanonicalEncoder"]
