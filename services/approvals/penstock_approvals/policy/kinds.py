"""Defines the kinds of items: all, those that cannot be rejected, and those that need a value.

Pure.
"""

from __future__ import annotations

from typing import Final, get_args

from penstock.dialects.base import PauseKind

KINDS: Final = frozenset(get_args(PauseKind))
# The kinds of items that a person can only answer, because the upstreams' protocols have no form
# for a rejection.
ANSWERED_ONLY: Final = frozenset({"input", "feedback", "selection", "credential"})
NEEDS_VALUE: Final = ANSWERED_ONLY | {"external", "long_running"}
