"""Ends a stream when its caller's credential expires or is revoked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import Scope

from penstock.web.auth import identity_of, over

log = logging.getLogger(__name__)

EXPIRES: Final = "token_expires"


@contextmanager
def while_valid(
    scope: Scope, end: Callable[[], object], warn: Callable[[str, str], object] | None = None
) -> Iterator[None]:
    """Call `end` once if the caller's credential becomes invalid within the block.

    Some time before a stream token expires, `warn` is called with a code and a message.
    """
    if identity_of(scope).expires_at is None:
        yield
        return

    def warn_of_expiry(left_s: float) -> None:
        if warn is not None:
            warn(EXPIRES, f"the stream token expires in {left_s:.0f} s; extend it, or take another")

    async def watch() -> None:
        try:
            await over(scope, warn_of_expiry)
        except Exception:
            # The stream must end now: nothing else would end it when the credential expires.
            log.exception("a stream is ended: its credential cannot be watched")
        end()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
