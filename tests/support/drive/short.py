"""Parameters of which `make test` takes some, and `make faults` takes the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def in_short(cases: Iterable[Any], short: Collection[Any]) -> list[Any]:
    """Mark each case that is not in `short` as one of `make faults`."""
    return [
        each if each in short else pytest.param(*_values(each), marks=pytest.mark.chaos)
        for each in cases
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
