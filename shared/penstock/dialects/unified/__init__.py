"""The unified dialect, with the 22 event types of unified-events.md."""

from penstock.dialects.unified.encode import CATEGORY_OF, OMITTED, UnifiedEncoder, selected_types

__all__ = ["CATEGORY_OF", "OMITTED", "UnifiedEncoder", "selected_types"]
