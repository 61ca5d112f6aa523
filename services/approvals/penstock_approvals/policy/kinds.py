"""What each kind of item allows. Pure."""

from __future__ import annotations

from typing import Final, get_args

from penstock.dialects.base import PauseKind

KINDS: Final = frozenset(get_args(PauseKind))
# An upstream's protocol has no form for the rejection of these kinds of items, so a person can only
# answer them.
ANSWERED_ONLY: Final = frozenset({"input", "feedback", "selection", "credential"})
NEEDS_VALUE: Final = ANSWERED_ONLY | {"external", "long_running"}
