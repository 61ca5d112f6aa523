"""Decides which events services may add to a run; all others come from the agent server. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.dialects.base import JsonObject
from penstock.events import CATALOGUE, TERMINAL
from penstock_normalizer.fold.approval_request import STEPS, PendingApproval

# All events of a workflow's run except `lifecycle.started`. The service `workflows` decides how the
# run continues, so its events are accepted at any time.
_OF_WORKFLOW: Final = frozenset(
    {
        *(type_ for type_ in CATALOGUE if type_.startswith(("workflow.", "dispatch."))),
        *("lifecycle.paused", "lifecycle.resumed", "lifecycle.retrying", *TERMINAL),
        *(type_ for type_ in CATALOGUE if type_.startswith("approval.")),
        *("system.warning", "system.error"),
    }
)

_Condition = Callable[[JsonObject, PendingApproval | None], bool]


def is_of_workflow(type_: str) -> bool:
    return type_ in _OF_WORKFLOW


def is_allowed(type_: str, data: JsonObject, pending: PendingApproval | None) -> bool:
    """Return whether a service may add this event now; `pending` is what the run waits for."""
    condition = _CONDITIONS.get(type_)
    return condition is not None and condition(data, pending)


def _is_about_pending(data: JsonObject, pending: PendingApproval | None) -> bool:
    return pending is not None and data.get("approval_id") == pending.approval_id


def _is_first_pause(data: JsonObject, pending: PendingApproval | None) -> bool:
    return _is_about_pending(data, pending) and not (pending and pending.pause_announced)


def _is_first_decision(data: JsonObject, pending: PendingApproval | None) -> bool:
    return _is_about_pending(data, pending) and not (pending and pending.decision_announced)


def _is_next_step(data: JsonObject, pending: PendingApproval | None) -> bool:
    if pending is None or not _is_about_pending(data, pending):
        return False
    is_over = pending.decision_announced or pending.expiry_announced
    step = data.get("step")
    return not is_over and isinstance(step, int) and step > pending.step


def _always(data: JsonObject, pending: PendingApproval | None) -> bool:
    return True


_CONDITIONS: Final[Mapping[str, _Condition]] = {
    "lifecycle.paused": _is_first_pause,
    "lifecycle.cancelled": _always,
    "lifecycle.failed": _always,
    "approval.decided": _is_first_decision,
    **dict.fromkeys(STEPS, _is_next_step),
    "approval.expired": _is_about_pending,
    "approval.withdrawn": _always,
    "automation.triggered": _always,
    "automation.completed": _always,
    "automation.failed": _always,
    "system.warning": _always,
}
