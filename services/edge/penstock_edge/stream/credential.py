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
    """Within the block, `end` is called once when the caller's credential is no longer valid.

    `warn` is called with a code and a message some time before a stream token expires.
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
            # If nobody watches the credential, the stream must not outlive it.
            log.exception("a stream is ended: its credential cannot be watched")
        end()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
