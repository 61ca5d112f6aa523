"""One test that goes through many recordings or modes, and says of each which one fails.

Thousands of cases of a millisecond each cost more as tests of their own than they take: every one
is collected by every worker, scheduled and reported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

MAX_SHOWN = 5  # failures whose tracebacks are shown; the others are only named


def for_each(
    names: str | tuple[str, ...],
    values: Iterable[Any],
    ids: Callable[[Any], object] | Sequence[str] = str,
) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, but all values in one test, which goes on after a failure.

    The test fails with what each value made of it, named by its id; it is skipped where every value
    skips it. Several of them above a test go through all combinations. Not for coroutines, and not
    for a test whose fixtures keep something from one value to the next.
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
