"""Words of ADK's protocol that decoder and encoder share."""

from __future__ import annotations

from typing import Final

# The `errorCode` of the event that ends a cancelled invocation (ADK 2.x).
ABORTED: Final = "INVOCATION_ABORTED"
