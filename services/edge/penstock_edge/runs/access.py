"""What a caller may do with runs, and how long a stream may go on for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import Scope

from penstock.bus import Bus
from penstock.bus.records import RunRecord
from penstock.web.auth import Identity, check_run, identity_of, over, require
from penstock_edge.sources.locate import record_of
from penstock_edge.views.dialects import RAW_DIALECT

EXPIRES: Final = "token_expires"


async def run_of(bus: Bus, who: Identity, run_id: str) -> RunRecord:
    """The record of a run that exists for the caller. Raises Problem 404, 403 as `check_run`."""
    record = await record_of(bus, run_id)
    check_run(who, record.user_id, record.run_id, record.session_id)
    return record


def require_dialect(who: Identity, dialect: str) -> None:
    """Raises Problem 403 for the upstream's own bytes without the scope `raw`."""
    if dialect == RAW_DIALECT:
        require(who, "raw")


@contextmanager
def while_it_holds(
    scope: Scope, end: Callable[[], object], warn: Callable[[str, str], object] | None = None
) -> Iterator[None]:
    """Within, `end` is called once the caller's credential has expired or was revoked.

    `warn` gets a code and a message some time before a stream token expires.
    """
    if identity_of(scope).expires_at is None:
        yield
        return

    def told(left_s: float) -> None:
        if warn is not None:
            warn(EXPIRES, f"the stream token expires in {left_s:.0f} s; extend it, or take another")

    async def watch() -> None:
        await over(scope, told)
        end()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
