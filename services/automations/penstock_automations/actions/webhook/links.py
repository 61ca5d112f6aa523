"""Gets the one-time links of a webhook, with the rights of the rule's owner."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.bus import Bus
from penstock.bus.records import Decider, LinkReply, LinkRequest
from penstock.runs.links import request_link
from penstock_automations.actions.executor import Occurrence
from penstock_automations.rules.model import LinkFor, Webhook
from penstock_automations.rules.records import Owner


async def links_of(
    bus: Bus, webhook: Webhook, owner: Owner, occurrence: Occurrence
) -> list[dict[str, Any]]:
    """Return the links for the webhook's body.

    Each entry names a person or a group. The entry also has the `url` of the link for this person
    or group, or the reason why no link was made.

    Raises:
        BusError: the approvals service does not answer.
    """
    if not webhook.links:
        return []
    approval_id = str(orjson.loads(occurrence.payload)["data"]["approval_id"])
    maker = Decider(
        name=owner.user_id, roles=owner.roles, scopes=owner.scopes, channel="automation"
    )
    return [await _link(bus, approval_id, maker, whom) for whom in webhook.links]


async def _link(bus: Bus, approval_id: str, maker: Decider, whom: LinkFor) -> dict[str, Any]:
    request = LinkRequest(maker=maker, **whom.model_dump())
    reply = await request_link(bus, approval_id, request)
    return {**whom.model_dump(include={"user", "role"}, exclude_none=True), **_shown(reply)}


def _shown(reply: LinkReply) -> dict[str, Any]:
    if reply.url is None:
        return {"error": reply.detail}
    return {"url": reply.url, "expires_at": reply.expires_at}
