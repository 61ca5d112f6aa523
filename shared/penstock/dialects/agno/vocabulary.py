"""Defines the names of Agno's protocol that both the decoder and the encoder use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Built-in tools of Agno that never run, because the person's answer becomes the result of the call.
_ANSWERED_TOOLS: Final = frozenset({"get_user_input", "ask_user"})
_ANSWERED_KINDS: Final = frozenset({"external", "feedback"})

# Maps the canonical name of a token count to the member of Agno's `metrics` with this count.
TOKENS: Final[Mapping[str, str]] = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "total_tokens": "total_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "cached_input_tokens": "cache_read_tokens",
}


def is_answered_by_decision(kind: str | None, tool: str) -> bool:
    """Return whether Agno streams no event for the call, which an item of this kind asks about."""
    return kind in _ANSWERED_KINDS or tool in _ANSWERED_TOOLS
