"""Describes the caller of a request as the decider of an approval."""

from __future__ import annotations

from penstock.bus.records.approvals import Channel, Decider, DeciderLimits
from penstock.web.auth import Identity


def decider_of(who: Identity, channel: Channel, acts_for: str | None = None) -> Decider:
    """Return the caller as the decider of an approval; `acts_for` may be the caller."""
    return Decider(
        name=who.user_id,
        roles=sorted(who.roles),
        scopes=sorted(who.scopes),
        channel=channel,
        on_behalf_of=acts_for if acts_for != who.user_id else None,
        limits=_limits(who),
        token_id=who.token_id,
        token_maker=who.service.made_by if who.service is not None else None,
    )


def _limits(who: Identity) -> DeciderLimits | None:
    granted = who.service
    if granted is None or not granted.is_limited:
        return None
    return DeciderLimits(
        agents=list(granted.agents), tools=list(granted.tools), rules=list(granted.rules)
    )
