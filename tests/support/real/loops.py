"""The event loops of tests: that of the services, and asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
import uvloop

T = TypeVar("T")


class Loops(asyncio.DefaultEventLoopPolicy):
    """Makes loops of uvloop, on which the services run.

    With asyncio's own, the loop took a fifth of the CPU time of the workers.
    """

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = uvloop.new_event_loop()
        loop.set_exception_handler(_stop_at_time_limit)
        return loop


def _stop_at_time_limit(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Stop the loop of a test that is over its time limit.

    pytest-timeout raises its error in the handler of a signal. A loop of uvloop that waits takes
    the error for that of a callback and goes on, so the test would wait for ever.
    """
    if isinstance(context.get("exception"), pytest.fail.Exception):
        loop.stop()
    loop.default_exception_handler(context)


def run_on_asyncio(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on asyncio's own loop."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main)
