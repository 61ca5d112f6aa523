"""Answers the requests of other services over core NATS: votes, one-time links, legal holds."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from penstock.bus import Bus, BusError, Msg, ObjectGone
from penstock.bus.records.approvals import DecideReply, DecideRequest, LinkReply, LinkRequest
from penstock.bus.records.erasures import HoldChange
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from penstock.web.answers import time_text
from penstock_approvals.api.approvals import TakeVote
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.links.store import LinkRefused, Links
from penstock_approvals.store.hiding import as_shown
from penstock_approvals.store.records import UnreadableRecord

log = logging.getLogger(__name__)


class Requests:
    """Handles `decide.<approval>`, `link.<approval>` and `hold.<run>`. If the bus fails, no answer
    is sent. So the caller's request times out, and the caller asks again, or reads the record."""

    def __init__(
        self, bus: Bus, approvals: Approvals, take_vote: TakeVote, *, public_url: str | None
    ) -> None:
        self._bus = bus
        self._approvals = approvals
        self._take_vote = take_vote
        self._links = Links(bus, approvals.audit, public_url)

    async def on_vote(self, msg: Msg) -> None:
        await self._answer(msg, self._vote, DecideReply)

    async def on_link(self, msg: Msg) -> None:
        await self._answer(msg, self._link, LinkReply)

    async def on_hold(self, msg: Msg) -> None:
        """Write a legal hold, or its end, into the audit of its run."""
        run_id = msg.subject.partition(".")[2]
        try:
            change = HoldChange.model_validate_json(msg.data)
            await self._approvals.audit.held(run_id, change)
        except (BusError, ValidationError) as error:
            log.warning("run %s: %s: no answer: %s", run_id, msg.subject, error)
            return
        await self._bus.client.publish(msg.reply, b"{}")

    async def _answer(
        self,
        msg: Msg,
        handle: Callable[[str, bytes], Awaitable[DecideReply | LinkReply]],
        refusal: type[DecideReply] | type[LinkReply],
    ) -> None:
        approval_id = msg.subject.partition(".")[2]
        try:
            reply = await handle(approval_id, msg.data)
        except ValidationError as error:
            reply = refusal(status=422, detail=str(error))
        except LinkRefused as refused:
            reply = refusal(status=refused.status, detail=str(refused))
        except ObjectGone as error:
            reply = refusal(status=404, detail=str(error))
        except UnreadableRecord as error:
            log.error("%s", error)
            reply = refusal(status=409, detail=str(error))
        except BusError as error:
            log.warning("approval %s: %s: no answer: %s", approval_id, msg.subject, error)
            return
        await self._bus.client.publish(msg.reply, reply.dump())

    async def _vote(self, approval_id: str, data: bytes) -> DecideReply:
        reply = await self._take_vote(approval_id, DecideRequest.model_validate_json(data))
        if reply.approval is None:
            return reply
        shown = reply.model_copy(update={"approval": as_shown(reply.approval, whole=False)})
        is_too_large = len(shown.dump()) > MAX_MESSAGE_BYTES
        return reply.model_copy(update={"approval": None}) if is_too_large else shown

    async def _link(self, approval_id: str, data: bytes) -> LinkReply:
        """Make a link for the person whom the request names, if this person may make it."""
        request = LinkRequest.model_validate_json(data)
        record = await self._approvals.shown_to(request.maker.name, approval_id, lambda _: True)
        if record is None:
            raise LinkRefused(404, f"there is no approval {approval_id}")
        whom = request.model_dump(include={"user", "role", "lifetime_s"})
        url, link = await self._links.make(request.maker, record, **whom)
        expires_at = time_text(link.expires_at)
        return LinkReply(status=201, id=link.id, url=url, expires_at=expires_at)
