"""Words of Agno's protocol that decoder and encoder share."""

from __future__ import annotations

from typing import Final

# Tools of Agno's own that never run: the person's answer is their result.
_ANSWERED_TOOLS: Final = frozenset({"get_user_input", "ask_user"})
_ANSWERED_KINDS: Final = frozenset({"external", "feedback"})


def answered_by_decision(kind: str | None, tool: str) -> bool:
    """Whether Agno takes the answer as the tool's result and streams no event of the call."""
    return kind in _ANSWERED_KINDS or tool in _ANSWERED_TOOLS
