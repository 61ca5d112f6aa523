"""Run one test over many recordings or modes, and report each value that fails.

Each test costs time for its collection by every worker, its scheduling and its report. For
thousands of cases of a millisecond each, this would cost more than the cases themselves.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

MAX_SHOWN = 5  # failures whose tracebacks are shown; further ones are only named


def for_each(
    names: str | tuple[str, ...],
    values: Iterable[Any],
    ids: Callable[[Any], object] | Sequence[str] = str,
) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, but run all values in one test and continue after a failure.

    The test fails with the failures of all values, each named by its id. The test is skipped if
    every value skips it. Several `for_each` above a test run all combinations. Do not use
    `for_each` for coroutines, or for a test whose fixtures keep state from one value to the next.
    """
    given = list(values)
    named = [str(each) for each in (map(ids, given) if callable(ids) else ids)]
    assert len(named) == len(given) > 0, "for_each needs values, and an id for each"
    columns = (names,) if isinstance(names, str) else names

    def decorate(test: Test) -> Test:
        assert not inspect.iscoroutinefunction(test)
        signature = inspect.signature(test)

        @functools.wraps(test)
        def all_of_them(*args: Any, **fixtures: Any) -> None:
            failed: dict[str, Exception] = {}
            skipped: BaseException | None = None
            ran = 0
            for id, value in zip(named, given, strict=True):
                row = (value,) if isinstance(names, str) else value
                try:
                    test(*args, **fixtures, **dict(zip(columns, row, strict=True)))
                    ran += 1
                except pytest.skip.Exception as skip:
                    skipped = skip
                except Exception as error:
                    error.add_note(f"with {', '.join(columns)} = {id}")
                    failed[id] = error
            _report(failed, len(given))
            if skipped is not None and not ran:
                raise skipped

        kept = [each for name, each in signature.parameters.items() if name not in columns]
        all_of_them.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return all_of_them  # type: ignore[return-value]

    return decorate


def _report(failed: dict[str, Exception], of: int) -> None:
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        shown = list(failed.values())[:MAX_SHOWN]
        raise ExceptionGroup(f"{len(failed)} of {of} fail: {', '.join(failed)}", shown)
