"""Policies for tests, and people with roles."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from penstock.bus import Bus
from penstock.bus.records.approvals import ApprovalRecord, Decided, Decider, DecideRequest


def written(folder: Path, text: str) -> Path:
    """Write a policy of version 1 with these lines; return the file."""
    path = folder / "policy.yaml"
    path.write_text(f"version: 1\n{text}")
    return path


def person(name: str, *roles: str, **more: Any) -> Decider:
    """Return a person with these roles, who may decide."""
    given = {"name": name, "roles": list(roles), "scopes": ["read", "decide"], **more}
    return Decider.model_validate(given)


def anybody(name: str) -> Decider:
    """Return a person who may decide for every requester, over a protocol without digests."""
    return person(name, scopes=["decide", "act-as"], channel="agno")


def vote(
    approval: ApprovalRecord,
    who: Decider,
    decision: str = "approve",
    *,
    note: str | None = None,
    key: str | None = None,
    digest: str | None = None,
    **item: Any,
) -> DecideRequest:
    """Return the same decision of a person on each item of the approval."""
    items = [
        Decided.model_validate({"item_id": each["item_id"], "decision": decision, **item})
        for each in approval.items
    ]
    return DecideRequest(
        decider=who,
        items=items,
        note=note,
        idempotency_key=key,
        digest=digest or approval.digest,
    )


class _Later:
    """A bus whose clock is ahead of the server's clock."""

    def __init__(self, bus: Any, by: timedelta) -> None:
        self._bus, self._by = bus, by
        self.clock = self

    def now(self) -> datetime:
        return self._bus.clock.now() + self._by  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus.clock if hasattr(type(self._bus.clock), name) else self._bus, name)


def later_bus(bus: Bus, by: timedelta) -> Bus:
    """Return the bus with a clock that is ahead of the server's clock."""
    return cast(Bus, _Later(bus, by))
