"""Compare what a policy would say of a recorded request with what was said then. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.bus.records.approvals import ApprovalRecord, Escalation
from penstock_approvals.policy.rulings import Ruling

_OUTCOMES: Final = {"approved": "approve", "rejected": "reject", "mixed": "mixed"}
_OF_ASKING: Final = ("need", "deciders", "escalations")
_SHOWN: Final = {"approval_id", "run_id", "agent", "user_id", "requested_at"}


def compared(record: ApprovalRecord, ruling: Ruling) -> dict[str, Any] | None:
    """Return a request that a policy would rule otherwise, with `was` and `would_be`; None if the
    same is decided without people, or the same people are asked. Times and edits are not
    compared."""
    decision = record.decision
    is_automatic = record.status == "decided" and decision is not None and decision.automatic
    was = {
        "outcome": _OUTCOMES[decision.outcome] if decision and is_automatic else "ask",
        "rule": record.policy.rule_id if record.policy is not None else None,
        "need": record.need,
        "deciders": [each.model_dump() for each in record.deciders],
        "escalations": _further(record.escalations),
    }
    would_be = {
        "outcome": ruling.outcome,
        "rule": ruling.rule_id,
        "need": ruling.need,
        "deciders": [each.model_dump() for each in ruling.deciders],
        "escalations": _further(ruling.escalate),
    }
    asks = was["outcome"] == would_be["outcome"] == "ask"
    if all(was[name] == would_be[name] for name in (_OF_ASKING if asks else ("outcome",))):
        return None
    ended = f"{decision.outcome} by {decision.by}" if decision is not None else record.status
    return {
        **record.model_dump(include=_SHOWN),
        "tools": [str(item.get("tool") or item.get("kind")) for item in record.items],
        "was": was,
        "would_be": would_be,
        "ended": ended,
    }


def _further(escalations: Sequence[Escalation]) -> list[dict[str, Any]]:
    """Return who may decide later, without reminders."""
    return [each.to.model_dump() for each in escalations if each.to is not None]
