"""The canonical contract as a client dialect: every event, whole."""

from penstock.dialects.canonical.encode import CanonicalEncoder

__all__ = ["CanonicalEncoder"]
