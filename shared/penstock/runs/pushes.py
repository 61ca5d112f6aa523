"""Asks the automations service to add, remove and list the pushes of a run."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bus import Bus, subjects
from penstock.bus.records.webhooks import Push, PushReply, PushRequest
from penstock.runs.decide import ANSWER_S
from penstock.web.auth import Identity
from penstock.web.problems import Problem


async def request_pushes(
    bus: Bus, who: Identity, run_id: str, *, add: Push | None = None, remove: str | None = None
) -> Sequence[Push]:
    """Add or remove a push, and return those of the run after it. The caller has checked that the
    run is the user's. A repeated request has no further effect. Raises Problem as the automations
    service answers, and BusError without an answer."""
    request = PushRequest(
        user_id=who.user_id,
        tenant=who.tenant,
        roles=sorted(who.roles),
        scopes=sorted(who.scopes),
        add=add,
        remove=remove,
    )
    answer = await bus.request(subjects.push(run_id), request.dump(), ANSWER_S)
    reply = PushReply.model_validate_json(answer.data)
    if reply.status != 200:
        raise Problem(reply.status, reply.detail)
    return reply.pushes
