"""Asks the approvals service for one-time links."""

from __future__ import annotations

from typing import Final

from penstock.bus import Bus
from penstock.bus.records import LinkReply, LinkRequest
from penstock.bus.subjects import link

ANSWER_S: Final = 3.0


async def request_link(bus: Bus, approval_id: str, request: LinkRequest) -> LinkReply:
    """Ask for a link. The reply has the link, or the reason why no link was made.

    A repeated request makes another link. If the reply to an earlier request was lost, nobody knows
    the earlier link, and that link expires unused.

    Raises:
        BusError: the approvals service does not reply.
    """
    answer = await bus.request(link(approval_id), request.dump(), ANSWER_S)
    return LinkReply.model_validate_json(answer.data)
