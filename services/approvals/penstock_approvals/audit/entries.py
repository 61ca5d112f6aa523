"""Makes the entries of the audit from an approval's record. Pure.

The approval's record keeps everything that people and the policy did. So `entries_of` returns the
same entries at any later time, in any process. If a process ends before it has written an entry,
the next call that handles the approval writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from penstock.bus.records.approvals import ApprovalRecord, Decided, Decider, Decision, Vote
from penstock.bus.records.erasures import HoldChange
from penstock_approvals.audit.chain import Entry, canonical, digest
from penstock_approvals.store.hiding import SECRET_KINDS, items_without_credentials

MAX_DETAILS_BYTES: Final = 64 * 1024  # larger details are replaced by their digest
HIDDEN: Final = "(hidden)"
TOOL_EVENTS: Final = ("llm.tool_progress", "llm.tool_result", "system.warning")
# the code of a `system.warning` about a call that ran with other arguments than the approved ones
NOT_APPROVED: Final = "not_what_was_approved"
_NOT_RUN: Final = frozenset({"rejected", "expired"})  # outcomes of calls that did not run


def entries_of(record: ApprovalRecord, with_details: bool = False) -> list[Entry]:
    """Return the entries for the request, escalations, reminders, votes, remarks and end that the
    record contains.

    Those of a waiting approval are in the order of their times, in which they were written. So if
    NATS loses them, they are written with the same numbers and hashes again."""
    policy = record.policy.model_dump() if record.policy is not None else None
    waiting = [
        *(_reached(record, number) for number in range(record.escalated)),
        *_voted(record, with_details),
        *_said(record, with_details),
    ]
    waiting.sort(key=lambda entry: entry.at)
    made = [_requested(record, with_details), *waiting, *_ended(record)]
    if record.decision is not None:
        made.append(_decided(record, record.decision, with_details))
    return [replace(entry, policy=policy) for entry in made]


def sent(record: ApprovalRecord, at: str) -> Entry | None:
    """Return the entry of the command that continues the run; None without such a command."""
    items = record.decided_items()
    if not items:
        return None
    shown = items_without_credentials(record, items)
    return Entry(
        approval_id=record.approval_id,
        event="sent",
        at=at,
        digest=digest([item.model_dump(exclude_none=True) for item in shown]),
        items={item.item_id: item.decision for item in items},
    )


def erased(event: Mapping[str, Any]) -> Entry:
    """Take the body of the event `system.erased`."""
    data = event["data"]
    return Entry(
        approval_id="",
        event="erased",
        which=str(data["erasure_id"]),
        at=str(event["timestamp"]),
        by=str(data["by"]),
        decision=data.get("reason"),
    )


def held(change: HoldChange) -> Entry:
    """Return the entry of a legal hold that was set or lifted."""
    return Entry(
        approval_id="",
        event=change.change,
        which=change.hold_at,
        at=change.at,
        by=change.by,
        decision=change.reason,
    )


def viewed(record: ApprovalRecord, who: Decider, at: str, *, ip_hash: str | None) -> Entry:
    return Entry(
        approval_id=record.approval_id,
        event="viewed",
        at=at,
        which=digest([who.name, who.on_behalf_of, who.channel, who.token_id])[7:23],
        by=who.name,
        **_who(who),
        ip_hash=ip_hash,
        digest=record.digest,
    )


def linked(record: ApprovalRecord, link_id: str, maker: Decider, to: str, at: str) -> Entry:
    """Return the entry of a link, with whose id the entries of its person name it as the token."""
    return Entry(
        approval_id=record.approval_id,
        event="linked",
        which=link_id,
        at=at,
        by=maker.name,
        **_who(maker),
        to=to,
        digest=record.digest,
    )


def _requested(record: ApprovalRecord, with_details: bool) -> Entry:
    return Entry(
        approval_id=record.approval_id,
        event="requested",
        at=record.requested_at,
        by=record.user_id,
        started_by=tuple(record.started_by) if record.started_by else None,
        # A vote that changes arguments also changes the record's `digest`. The original digest of
        # the request is then in `requested_digest`.
        digest=record.requested_digest or record.digest,
        items={item["item_id"]: str(item.get("kind")) for item in record.items},
        details=_limited({"items": _arguments(record)}) if with_details else None,
    )


def _reached(record: ApprovalRecord, number: int) -> Entry:
    return Entry(
        approval_id=record.approval_id,
        event="reminded" if record.escalations[number].to is None else "escalated",
        which=str(number + 1),
        at=record.escalations[number].at,
        by="policy",
        channel="policy",
    )


def _voted(record: ApprovalRecord, with_details: bool) -> list[Entry]:
    """Return the entries of the votes and of those that were taken back, except for the deciding
    vote, which `_decided` covers."""
    decision = record.decision
    by_vote = decision is not None and not decision.automatic
    votes = record.votes[:-1] if by_vote else record.votes
    return [
        *(_vote(record, number, vote, with_details) for number, vote in enumerate(votes, 1)),
        *(
            Entry(
                approval_id=record.approval_id,
                event="taken_back",
                which=str(number),
                at=vote.taken_back,
                by=vote.decider.name,
                on_behalf_of=vote.decider.on_behalf_of,
                token_id=vote.decider.token_id,
                digest=vote.digest,
            )
            for number, vote in enumerate(votes, 1)
            if vote.taken_back is not None
        ),
    ]


def _vote(record: ApprovalRecord, number: int, vote: Vote, with_details: bool) -> Entry:
    return Entry(
        approval_id=record.approval_id,
        event="voted",
        which=str(number),
        at=vote.at,
        by=vote.decider.name,
        **_who(vote.decider),
        digest=vote.digest,
        items={item.item_id: item.decision for item in vote.items},
        note_hash=note_hash(vote.note),
        details=_answers(record, vote.note, vote.items) if with_details else None,
    )


def _said(record: ApprovalRecord, with_details: bool) -> list[Entry]:
    return [
        Entry(
            approval_id=record.approval_id,
            event="remarked",
            which=str(number),
            at=remark.at,
            by=remark.decider.name,
            **_who(remark.decider),
            decision=remark.kind,
            to=remark.to,
            note_hash=note_hash(remark.text),
            details=_limited({"note": remark.text}) if with_details else None,
        )
        for number, remark in enumerate(record.remarks, 1)
    ]


def _ended(record: ApprovalRecord) -> list[Entry]:
    if record.status not in ("expired", "withdrawn"):
        return []
    return [
        Entry(
            approval_id=record.approval_id,
            event=record.status,
            at=record.updated_at,
            by="policy" if record.status == "expired" else None,
            channel="policy" if record.status == "expired" else None,
            digest=record.digest,
            decision=record.reason,
        )
    ]


def _decided(record: ApprovalRecord, decision: Decision, with_details: bool) -> Entry:
    return Entry(
        approval_id=record.approval_id,
        event="decided",
        at=decision.at,
        by=decision.by,
        **_who(decision.decider),
        digest=record.digest,
        decision=decision.outcome,
        items={item.item_id: item.decision for item in decision.items},
        note_hash=note_hash(decision.note),
        details=_answers(record, decision.note, decision.items) if with_details else None,
    )


def _answers(record: ApprovalRecord, note: str | None, items: Sequence[Decided]) -> Any:
    answers = {
        item.item_id: item.model_dump(include={"note", "value", "args"}, exclude_none=True)
        for item in items_without_credentials(record, items)
    }
    return _limited({"note": note, "items": answers})


def _who(decider: Decider | None) -> dict[str, Any]:
    """Return the members of a record that name who acted; none for a restored decision."""
    if decider is None:
        return {}
    return {
        "on_behalf_of": decider.on_behalf_of,
        "roles": tuple(decider.roles),
        "channel": decider.channel,
        "token_id": decider.token_id,
        "token_maker": decider.token_maker,
    }


def note_hash(note: str | None) -> str | None:
    return digest(note) if note else None


def _arguments(record: ApprovalRecord) -> dict[str, Any]:
    return {
        item["item_id"]: HIDDEN if item.get("kind") in SECRET_KINDS else _asked(item)
        for item in record.items
    }


def _asked(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the agent has asked for, also after a vote has changed the arguments."""
    asked = {name: item[name] for name in ("tool", "args", "description") if name in item}
    return asked | ({"args": item["requested_args"]} if "requested_args" in item else {})


def _limited(details: Mapping[str, Any]) -> Mapping[str, Any]:
    size = len(canonical(details))
    if size <= MAX_DETAILS_BYTES:
        return details
    return {"bytes": size, "digest": "sha256:" + sha256(canonical(details)).hexdigest()}


def approved_calls(record: ApprovalRecord) -> dict[str, str]:
    """Return the digest of each approved item of a decided approval, by the id of the item's tool
    call."""
    decided = record.decision.items if record.decision is not None else []
    approved = {item.item_id for item in decided if item.decision == "approve"}
    return {
        str(item.get("tool_call_id") or item["item_id"]): str(item.get("digest"))
        for item in record.items
        if item["item_id"] in approved
    }


def entries_of_executed_calls(
    record: ApprovalRecord, events: Iterable[Mapping[str, Any]]
) -> list[Entry]:
    """Return an entry for each approved call that ran.

    `events` are the bodies of the run's events of `TOOL_EVENTS`, in the order of their sequences.
    The entry has the digest of the approved item. If the call ran with other arguments, the entry
    says so, and has the digest of these arguments instead. The digest of the other arguments comes
    from the warning.
    """
    calls = approved_calls(record)
    found: dict[str, Entry] = {}
    others: dict[str, str | None] = {}
    for event in events:
        data = event["data"]
        if int(event["leg"]) <= record.leg:
            continue
        if data.get("code") == NOT_APPROVED:
            detail = data.get("detail") or {}
            shown = detail.get("ran") or {}
            others[str(detail.get("tool_call_id"))] = shown.get("args_digest")
            continue
        call_id = data.get("tool_call_id")
        outcome = data.get("outcome") or data.get("status")
        if call_id not in calls or outcome in _NOT_RUN:
            continue
        found[call_id] = Entry(
            approval_id=record.approval_id,
            event="ran",
            which=call_id,
            at=str(event["timestamp"]),
            by=record.agent,
            digest=others.get(call_id, calls[call_id]),
            decision=NOT_APPROVED if call_id in others else "as_approved",
            items={call_id: str(outcome)},
        )
    return list(found.values())
