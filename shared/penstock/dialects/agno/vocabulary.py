"""Words of Agno's protocol that decoder and encoder share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Tools of Agno's own that never run: the person's answer is their result.
_ANSWERED_TOOLS: Final = frozenset({"get_user_input", "ask_user"})
_ANSWERED_KINDS: Final = frozenset({"external", "feedback"})

# The token counts of a run: ours, and the members of Agno's `metrics`.
TOKENS: Final[Mapping[str, str]] = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "total_tokens": "total_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "cached_input_tokens": "cache_read_tokens",
}


def answered_by_decision(kind: str | None, tool: str) -> bool:
    """Whether Agno takes the answer as the tool's result and streams no event of the call."""
    return kind in _ANSWERED_KINDS or tool in _ANSWERED_TOOLS
