"""Ends a stream when its caller's credential expires or is revoked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import Scope

from penstock.log_fields import run_of
from penstock.web.auth import identity_of, wait_until_credential_ends

log = logging.getLogger(__name__)

EXPIRES: Final = "token_expires"
CHECK_AGAIN_S: Final = 15.0


def watch(
    scope: Scope, end: Callable[[], object], warn: Callable[[str, str], object] | None = None
) -> Callable[[], None]:
    """Call `end` once when the caller's credential becomes invalid, and `warn` with a code and a
    message some time before a stream token expires. The returned function ends the watch."""
    identity = identity_of(scope)
    if identity.expires_at is None:
        return _nothing
    if identity.token_id is None:
        return _Expiry(identity.expires_at, end).stop
    return _watch_token(scope, end, warn)


@contextmanager
def while_valid(
    scope: Scope, end: Callable[[], object], warn: Callable[[str, str], object] | None = None
) -> Iterator[None]:
    stop = watch(scope, end, warn)
    try:
        yield
    finally:
        stop()


class _Expiry:
    """Calls `end` at a Unix time, by a timer, which needs 0.4 KB; a task would need 1.6 KB."""

    __slots__ = ("_end", "_expires_at", "_timer")

    def __init__(self, expires_at: float, end: Callable[[], object]) -> None:
        self._expires_at = expires_at
        self._end: Callable[[], object] | None = end
        self._timer: asyncio.TimerHandle | None = None
        self._check()

    def stop(self) -> None:
        self._end = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        left_s = self._expires_at - time.time()
        if left_s > 0:
            # The wall clock may be changed during a wait. So no wait is longer than
            # `CHECK_AGAIN_S`.
            wait_s = min(left_s, CHECK_AGAIN_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._check)
        elif self._end is not None:
            end = self._end
            self.stop()
            end()


def _nothing() -> None:
    pass


def _watch_token(
    scope: Scope, end: Callable[[], object], warn: Callable[[str, str], object] | None
) -> Callable[[], None]:
    def warn_of_expiry(left_s: float) -> None:
        if warn is not None:
            warn(EXPIRES, f"the stream token expires in {left_s:.0f} s; extend it, or take another")

    async def until_over() -> None:
        try:
            await wait_until_credential_ends(scope, warn_of_expiry)
        except Exception:
            # No other task ends the stream when the credential expires, and this task has failed.
            # So the stream ends now.
            extra = run_of(scope.get("path", ""))
            log.exception("a stream ends: its credential cannot be watched", extra=extra)
        end()

    watching = asyncio.create_task(until_over())

    def stop() -> None:
        watching.cancel()

    return stop
