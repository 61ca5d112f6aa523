"""Asks the approvals service for one-time links."""

from __future__ import annotations

from typing import Final

from penstock.bus import Bus
from penstock.bus.records import LinkReply, LinkRequest
from penstock.bus.subjects import link

ANSWER_S: Final = 3.0


async def request_link(bus: Bus, approval_id: str, request: LinkRequest) -> LinkReply:
    """Return the answer of the approvals service: a link, or the reason why there is none.

    A repeated request makes another link. A link whose answer was lost is known to nobody, and
    expires.

    Raises:
        BusError: there is no answer.
    """
    answer = await bus.request(link(approval_id), request.dump(), ANSWER_S)
    return LinkReply.model_validate_json(answer.data)
