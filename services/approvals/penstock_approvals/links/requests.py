"""Answer requests for links that other services send over core NATS."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from penstock.bus import Bus, BusError, Msg, ObjectGone
from penstock.bus.records import LinkReply, LinkRequest
from penstock.web.answers import time_text
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.links.store import LinkRefused, Links, url_of
from penstock_approvals.store.records import UnreadableRecord

log = logging.getLogger(__name__)


class LinkRequests:
    """Handles requests for links on `link.<approval>`.

    A request names the person who wants the link. The link is made only if this person may make it.
    """

    def __init__(self, bus: Bus, approvals: Approvals, public_url: str | None) -> None:
        self._bus = bus
        self._approvals = approvals
        self._links = Links(bus)
        self._public_url = public_url

    async def on_request(self, msg: Msg) -> None:
        """Answer a request. If the bus fails, no answer is sent, and the caller may ask again."""
        try:
            reply = await self._reply(msg.subject.removeprefix("link."), msg.data)
        except ValidationError as error:
            reply = LinkReply(status=422, detail=str(error))
        except LinkRefused as refused:
            reply = LinkReply(status=refused.status, detail=refused.detail)
        except (ObjectGone, UnreadableRecord) as error:
            reply = LinkReply(status=404, detail=str(error))
        except BusError as error:
            log.warning("approval %s: no link: %s", msg.subject.removeprefix("link."), error)
            return
        await self._bus.client.publish(msg.reply, reply.dump())

    async def _reply(self, approval_id: str, data: bytes) -> LinkReply:
        request = LinkRequest.model_validate_json(data)
        record = await self._approvals.shown_to(request.maker.name, approval_id, lambda _: True)
        if record is None:
            raise LinkRefused(404, f"there is no approval {approval_id}")
        secret, link = await self._links.make(
            request.maker,
            record,
            user=request.user,
            role=request.role,
            lifetime_s=request.lifetime_s,
        )
        return LinkReply(
            status=201,
            id=link.id,
            url=url_of(self._public_url, secret),
            expires_at=time_text(link.expires_at),
        )
