"""Count the votes on an approval. Pure.

Each person's decision is a vote in the approval's record. One rejecting vote is enough to reject an
item. An item is approved when as many people as the policy requires have approved it. The approval
is decided when each item is rejected or approved. A vote may change the arguments or the value that
people are asked to approve. Such a vote makes the earlier votes void, because the earlier votes
approved something else.

Until the decision, a person may take the vote back, and then vote again. The record keeps the vote,
which counts for nothing from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from penstock.bus.records.approvals import (
    ApprovalRecord,
    Channel,
    Decided,
    Decider,
    DecideRequest,
    Decision,
    Vote,
)
from penstock.dialects.approvals import have_same_args
from penstock.digests import item_digest, request_digest
from penstock_approvals.outcomes.rules import DecisionMismatch, check, check_edit, outcome
from penstock_approvals.policy.deciding_rights import (
    earlier_vote,
    may_decide,
    voter_of,
    votes_of,
)
from penstock_approvals.policy.model import NEEDS_VALUE

# The channels whose clients get the digest and must send the digest back. The protocols of agent
# servers cannot carry a digest, so answers in these protocols have none.
SENDS_DIGEST: Final[frozenset[Channel]] = frozenset({"api", "link", "page", "vercel", "cli"})

# The greatest number of votes. Without this limit, people who change arguments in turns could vote
# for ever.
MAX_VOTES: Final = 1000
# How often one person may take a vote back. Otherwise one person could use up all votes.
MAX_TAKEN_BACK: Final = 10


class VoteRefused(Exception):
    """The error for a vote, or another change of a person, that does not count. `status` is an HTTP
    status; the text says why."""

    def __init__(self, status: Literal[403, 409, 422], reason: str) -> None:
        super().__init__(reason)
        self.status: Literal[403, 409, 422] = status


def with_vote(
    record: ApprovalRecord, request: DecideRequest, now: str, *, require_digest: bool = False
) -> ApprovalRecord:
    """Return the pending record with one more vote, and with the decision, if the vote decides the
    approval. If the vote repeats an earlier vote with the same idempotency key, the same record.

    Raises:
        VoteRefused: in this order: 403, the person may not decide; 409, the vote was taken back,
            the person or the maker of the token or link has voted, or there are too many votes;
            409, another digest; 422, an item, a value or an edit does not fit; 403, a rule rejects
            an item; 422, no digest.
    """
    decider = request.decider
    if (reason := may_decide(record, decider)) is not None:
        raise VoteRefused(403, reason)
    earlier = earlier_vote(record, decider)
    mine = votes_of(record, decider)
    if any(vote.taken_back is not None and _repeats(vote, request) for vote in mine):
        # A request that a client or a proxy repeats late must not bring the vote back.
        text = "this vote was taken back; to vote again, send another idempotency_key"
        raise VoteRefused(409, text)
    if earlier is not None and _repeats(earlier, request):
        return record
    if earlier is not None:
        text = f"{earlier.by} has decided this already, at {earlier.at}; another person must decide"
        if earlier.by != voter_of(record, decider):
            text += ": a token or link gives no vote beside that of the person who made it"
        raise VoteRefused(409, text)
    if len(record.votes) >= MAX_VOTES:
        raise VoteRefused(409, f"{MAX_VOTES} votes were cast; cancel the run")
    # The person must have seen the arguments that the record has now. A request may leave its
    # digest out only if no earlier vote has changed the arguments.
    if request.digest is not None and request.digest != record.digest:
        text = "the request is not the one that was shown: its digest differs; look at it again"
        raise VoteRefused(409, text)
    if request.digest is None and record.requested_digest is not None:
        text = "somebody has changed the arguments; look at the request, and send its digest"
        raise VoteRefused(409, text)
    request = _completed(record, request)
    try:
        check(record, request)
        edited = _edited(record, request)
    except DecisionMismatch as error:
        raise VoteRefused(422, str(error)) from None
    _check_rulings(record, request)
    if require_digest and decider.channel in SENDS_DIGEST and request.digest is None:
        raise VoteRefused(422, "digest: send the `digest` of the approval that was shown")
    return _counted(edited, request, now)


def without_vote(record: ApprovalRecord, who: Decider, now: str) -> ApprovalRecord:
    """Return the pending record without the caller's vote; the same record if the caller has taken
    the vote back before.

    If no vote is left, the arguments are those that were requested.

    Raises:
        VoteRefused: 409, the caller has not voted, or has taken too many votes back.
    """
    mine = votes_of(record, who)
    standing = [vote for vote in mine if vote.taken_back is None]
    if mine and not standing:
        return record
    if not standing:
        raise VoteRefused(409, "there is no vote of yours to take back")
    if len(mine) - len(standing) >= MAX_TAKEN_BACK:
        raise VoteRefused(409, f"you have taken back {MAX_TAKEN_BACK} votes; this one stays")
    taken = {"void": True, "taken_back": now}
    votes = [vote.model_copy(update=taken) if vote in standing else vote for vote in record.votes]
    update: dict[str, Any] = {"votes": votes, "updated_at": now}
    if record.requested_digest is not None and all(vote.void for vote in votes):
        items = items_as_requested(record)
        update |= {"items": items, "digest": record.requested_digest, "requested_digest": None}
    return record.model_copy(update=update)


def items_as_requested(record: ApprovalRecord) -> list[dict[str, Any]]:
    """Return the items with the arguments that the agent has asked for."""
    return [
        item if "requested_args" not in item else _as_requested(record.approval_id, item)
        for item in record.items
    ]


def _as_requested(approval_id: str, item: dict[str, Any]) -> dict[str, Any]:
    asked = {name: value for name, value in item.items() if name != "requested_args"}
    asked["args"] = item["requested_args"]
    return asked | {"digest": item_digest(approval_id, asked)}


def _repeats(vote: Vote, request: DecideRequest) -> bool:
    key = request.idempotency_key
    return key is not None and vote.idempotency_key == key and _is_same(vote, request)


def is_same_request(record: ApprovalRecord, request: DecideRequest) -> bool:
    """Return whether a request is equal to the recorded vote or decision with the same idempotency
    key."""
    votes = [vote for vote in record.votes if vote.idempotency_key == request.idempotency_key]
    recorded: list[Vote | Decision | None] = [*votes] or [record.decision]
    return any(_is_same(each, request) for each in recorded if each is not None)


def _is_same(recorded: Vote | Decision, request: DecideRequest) -> bool:
    pairs = zip(recorded.items, request.items, strict=False)
    return (
        recorded.note == request.note
        and len(recorded.items) == len(request.items)
        and all(_is_same_item(one, other) for one, other in pairs)
    )


def _is_same_item(recorded: Decided, item: Decided) -> bool:
    """Return whether two decisions on an item are the same.

    The recorded decision may differ in form from the request. For example, the request may have the
    edited arguments as its value. And if the request has no value, the recorded value may come from
    an earlier vote.
    """
    value = item.value if item.args is None else item.args
    recorded_value = recorded.value if recorded.args is None else recorded.args
    same_value = value in (None, recorded_value)
    return same_value and (recorded.item_id, recorded.decision, recorded.note) == (
        item.item_id,
        item.decision,
        item.note,
    )


def _completed(record: ApprovalRecord, request: DecideRequest) -> DecideRequest:
    """Return the request with completed items.

    If the value of an editable item is an object, this object becomes the item's arguments. An item
    that is approved without a value gets the value of the earlier votes.

    Two kinds of votes get no value from earlier votes, because the person has not seen that value.
    The first kind is a vote on a confirmation. In AG-UI, a confirmation's value contains changed
    arguments, and neither the digest nor the shown arguments include these. The second kind is a
    vote by a link, because the page of a link does not show the values of earlier votes.
    """
    proposed = _proposed(record) if request.decider.channel != "link" else {}
    asked = {item["item_id"]: item for item in record.items}

    def completed(item: Decided) -> Decided:
        if item.decision == "reject":
            return item
        args, value = item.args, item.value
        if args is None and isinstance(value, dict) and asked.get(item.item_id, {}).get("editable"):
            args, value = value or None, None
        if value is None and asked.get(item.item_id, {}).get("kind") in NEEDS_VALUE:
            value = proposed.get(item.item_id)
        return item.model_copy(update={"args": args, "value": value})

    return request.model_copy(update={"items": [completed(item) for item in request.items]})


def _proposed(record: ApprovalRecord) -> dict[str, Any]:
    return {
        item.item_id: item.value
        for vote in record.votes
        if not vote.void
        for item in vote.items
        if item.decision == "approve" and item.value is not None
    }


def _edited(record: ApprovalRecord, request: DecideRequest) -> ApprovalRecord:
    """Return the record with the changes that the request makes. They make earlier votes void.

    Raises:
        DecisionMismatch: the policy or the agent server does not allow one of the changes.
    """
    allowed = {each.item_id: each.edit for each in record.rulings}
    approved = {item.item_id: item for item in request.items if item.decision == "approve"}
    values = _proposed(record)
    items = []
    for asked in record.items:
        item = approved.get(asked["item_id"])
        edited = asked
        if item is not None:
            try:
                edited = _edited_item(record, asked, item, allowed=allowed.get(item.item_id, ["*"]))
            except DecisionMismatch as error:
                raise DecisionMismatch(f"item {item.item_id}: {error}") from None
        items.append(edited)
    is_edited = items != record.items
    if not is_edited and all(
        item.value == values.get(item_id) for item_id, item in approved.items()
    ):
        return record
    update: dict[str, Any] = {
        "votes": [vote.model_copy(update={"void": True}) for vote in record.votes]
    }
    if is_edited:
        update |= {
            "items": items,
            "digest": request_digest([str(item.get("digest")) for item in items]),
            "requested_digest": record.requested_digest or record.digest,
        }
    return record.model_copy(update=update)


def _edited_item(
    record: ApprovalRecord, asked: dict[str, Any], item: Decided, *, allowed: Sequence[str]
) -> dict[str, Any]:
    before = asked.get("args") or {}
    original = asked.get("requested_args", before)
    if asked["kind"] not in NEEDS_VALUE and item.value is not None:
        if asked.get("editable"):  # the agent server would take the value as the call's arguments
            raise DecisionMismatch("send all its arguments as `args`, without a value")
        _check_value(asked, item.value, original, allowed=allowed)
    if item.args is None or have_same_args(dict(before), dict(item.args)):
        return asked
    if not asked.get("editable"):
        raise DecisionMismatch("its agent's server takes no edited arguments")
    check_edit(original, item.args, allowed)
    changed = {**asked, "args": item.args, "requested_args": original}
    return {**changed, "digest": item_digest(record.approval_id, changed)}


def _check_value(
    asked: Mapping[str, Any], value: Any, original: Mapping[str, Any], *, allowed: Sequence[str]
) -> None:
    """Raise DecisionMismatch if a confirmation's value could change what must not change.

    Agno's AG-UI interface takes new arguments from the value's member `values`. If the value has no
    such member and the request has no schema for the value, nobody knows what the server does with
    the value.
    """
    values = value.get("values") if isinstance(value, dict) else None
    if isinstance(values, dict):
        check_edit(original, {**original, **values}, allowed)
    elif not asked.get("input_schema") and not {"*", "args.*"} & set(allowed):
        raise DecisionMismatch(
            "a confirmation with a value may change arguments; leave the value out"
        )


def _check_rulings(record: ApprovalRecord, request: DecideRequest) -> None:
    rejected = {each.item_id: each for each in record.rulings if each.outcome == "reject"}
    for item in request.items:
        ruling = rejected.get(item.item_id)
        if ruling is not None and item.decision == "approve":
            reason = f": {ruling.note}" if ruling.note else ""
            text = f"item {item.item_id}: rule {ruling.rule_id} of the policy rejects it{reason}"
            raise VoteRefused(403, text)


def _counted(record: ApprovalRecord, request: DecideRequest, now: str) -> ApprovalRecord:
    vote = Vote(
        by=voter_of(record, request.decider),
        decider=request.decider,
        at=now,
        digest=record.digest,
        items=request.items,
        note=request.note,
        idempotency_key=request.idempotency_key,
        traceparent=request.traceparent,
    )
    voted = record.model_copy(update={"votes": [*record.votes, vote], "updated_at": now})
    items = decided_items(voted)
    if items is None:
        return voted
    decision = Decision(
        outcome=outcome(items),
        by=request.decider.name,
        decider=request.decider,
        at=now,
        note=request.note,
        items=items,
        idempotency_key=request.idempotency_key,
        invocation_id=request.invocation_id,
    )
    return voted.model_copy(update={"status": "decided", "decision": decision})


def decided_items(record: ApprovalRecord) -> list[Decided] | None:
    """Return the decision on each item; None while an item is still open. A rejection in a void
    vote still counts, unless the vote was taken back: a person who rejected an item has not
    approved the changed item either."""
    decided = []
    votes = [vote for vote in record.votes if vote.taken_back is None]
    for asked in record.items:
        decisions = [(vote, _item_of(vote, asked["item_id"])) for vote in votes]
        rejected = [(vote, item) for vote, item in decisions if item.decision == "reject"]
        approved = [item for vote, item in decisions if not vote.void]
        if rejected:
            decided.append(_rejected(*rejected[0], record.votes[-1]))
        elif len(approved) >= record.need:
            decided.append(_approved(asked, approved[-1]))
        else:
            return None
    return decided


def _item_of(vote: Vote, item_id: str) -> Decided:
    return next(each for each in vote.items if each.item_id == item_id)


def _rejected(vote: Vote, item: Decided, last: Vote) -> Decided:
    """Return the rejection with the note of its vote. The last vote's note is not added, because
    that note becomes the note of the whole decision."""
    if vote is last or item.note is not None:
        return item
    return item.model_copy(update={"note": vote.note})


def _approved(asked: Mapping[str, Any], item: Decided) -> Decided:
    edited = asked["args"] if "requested_args" in asked else None
    return item.model_copy(update={"args": edited})
