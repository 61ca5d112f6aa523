"""Sends a caller the changes of the approvals that the caller may see, as Server-Sent Events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import StreamingResponse

from penstock import sse
from penstock.bus.records.approvals import ApprovalRecord
from penstock.web.auth import wait_until_credential_ends
from penstock_approvals.inbox.feed import Batch, BeyondEnd, Feed
from penstock_approvals.store.hiding import as_shown

log = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 15.0
_HEADERS: Final = sse.HEADERS | {"cache-control": "no-store, no-transform"}


def name_of(record: ApprovalRecord) -> str:
    """Return the name of the SSE event that shows this record, such as `approval.requested`."""
    if record.status != "pending":
        return f"approval.{record.status}"
    if record.remarks and record.remarks[-1].at >= record.updated_at:
        return "approval.remarked"
    if any(vote.taken_back == record.updated_at for vote in record.votes):
        return "approval.taken_back"
    if record.votes and (not record.escalated or record.votes[-1].at >= record.updated_at):
        return "approval.voted"
    if record.escalated == 0:
        return "approval.requested"
    is_reminder = record.escalations[record.escalated - 1].to is None
    return "approval.reminded" if is_reminder else "approval.escalated"


@dataclass(frozen=True, slots=True)
class Reader:
    """What a caller sees of approvals: whether one is shown, and whether whole."""

    shows: Callable[[ApprovalRecord], bool]
    sees_whole: Callable[[ApprovalRecord], bool]

    def seen(self, record: ApprovalRecord) -> ApprovalRecord:
        return as_shown(record, whole=self.sees_whole(record))


def page(batch: Batch, reader: Reader) -> dict[str, Any]:
    """Return the changes of one read as a JSON page. `next` is the cursor of the next page."""
    changes = [
        {
            "id": str(change.sequence),
            "event": name_of(change.record),
            "approval": reader.seen(change.record).model_dump(exclude_none=True),
        }
        for change in batch.changes
        if reader.shows(change.record)
    ]
    return {"changes": changes, "next": str(batch.through)}


def response(request: Request, feed: Feed, reader: Reader, after: int) -> StreamingResponse:
    """Return the stream of the approvals' changes after a sequence of the bucket. The stream ends
    when the client leaves, when the client's credential ends, or when the process stops."""
    frames = _while_valid(request, _frames(feed, reader, after))
    return StreamingResponse(frames, headers=_HEADERS)


async def _frames(feed: Feed, reader: Reader, after: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    # This frame has the first cursor as its id. So a client that has got no change yet can resume,
    # too.
    yield sse.encode(b"{}", event="ready", id=str(after))
    sent_s = loop.time()
    try:
        async for batch in feed.changes(after):
            frames = [
                sse.encode(
                    reader.seen(change.record).dump(),
                    event=name_of(change.record),
                    id=str(change.sequence),
                )
                for change in batch.changes
                if reader.shows(change.record)
            ]
            if not frames and loop.time() - sent_s < KEEP_ALIVE_S:
                continue
            yield b"".join(frames) or sse.KEEP_ALIVE
            sent_s = loop.time()
    except BeyondEnd:
        log.info("NATS has lost changes of approvals, so a client's stream ends")


async def _while_valid(request: Request, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the frames until the caller's credential has expired or was revoked."""
    ended = asyncio.ensure_future(wait_until_credential_ends(request.scope))
    try:
        while True:
            following: asyncio.Future[bytes | None] = asyncio.ensure_future(anext(frames, None))
            try:
                both: set[asyncio.Future[Any]] = {following, ended}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not following.done():
                    following.cancel()
            if following.cancelled() or not following.done():
                return
            frame = following.result()
            if frame is None:
                return
            yield frame
    finally:
        ended.cancel()
