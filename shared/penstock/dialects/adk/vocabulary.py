"""Defines the names of ADK's protocol that both the decoder and the encoder use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# The `errorCode` of the event that ends a cancelled invocation (ADK 2.x).
ABORTED: Final = "INVOCATION_ABORTED"

# The key of `customMetadata` under which tools read the leg's idempotency key.
IDEMPOTENCY_KEY: Final = "idempotency_key"

# Maps the canonical name of a token count to the member of ADK's `usageMetadata` with this count.
TOKENS: Final[Mapping[str, str]] = {
    "input_tokens": "promptTokenCount",
    "output_tokens": "candidatesTokenCount",
    "total_tokens": "totalTokenCount",
    "reasoning_tokens": "thoughtsTokenCount",
    "cached_input_tokens": "cachedContentTokenCount",
}
