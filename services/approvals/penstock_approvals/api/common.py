"""What the routes share: counting a vote, and finding the approval."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from penstock.bus.records import ApprovalRecord, DecideReply, DecideRequest
from penstock.web.auth import identity_of
from penstock.web.problems import Problem
from penstock_approvals.lifecycle.decisions import Approvals

TakeVote = Callable[[str, DecideRequest], Awaitable[DecideReply]]


async def found(
    approvals: Approvals, request: Request, sees: Callable[[ApprovalRecord], bool]
) -> ApprovalRecord:
    """Return the approval whose id is in the path. Raises Problem 404 if there is no such approval,
    or if the caller does not see it."""
    approval_id, caller = request.path_params["approval_id"], identity_of(request).user_id
    record = await approvals.shown_to(caller, approval_id, sees)
    if record is None:
        raise Problem(404, f"there is no approval {approval_id}")
    return record
