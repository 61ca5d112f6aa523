"""The unified dialect, with the 22 event types of unified-events.md."""

from penstock.dialects.unified.encode import OMITTED, UnifiedEncoder
from penstock.dialects.unified.types import CATEGORY_OF, selected_types

__all__ = ["CATEGORY_OF", "OMITTED", "UnifiedEncoder", "selected_types"]
