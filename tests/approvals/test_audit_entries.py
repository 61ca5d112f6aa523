"""The record of an approval implies its entries in the audit, the same at any later time."""

from __future__ import annotations

from typing import Any

from penstock.bus.records.approvals import ApprovalRecord
from penstock_approvals.audit.chain import Entry, Link, canonical, link, missing
from penstock_approvals.audit.entries import MAX_DETAILS_BYTES, entries_of, sent

AT = "2026-01-01T10:00:0{}.000Z"
TWO = {"policy": {"rule_id": "pay", "version": 7, "digest": "sha256:p"}, "need": 2}


def item(kind: str = "confirmation", **more: Any) -> dict[str, Any]:
    return {"item_id": "t1", "kind": kind, "digest": "sha256:i", **more}


def record(**fields: Any) -> ApprovalRecord:
    common = {"approval_id": "a", "run_id": "r", "agent": "g", "session_id": "s", "user_id": "ann"}
    times = {"requested_at": AT.format(0), "updated_at": AT.format(9)}
    made = {"leg": 1, "digest": "sha256:d", "items": [item()], **common, **times, **fields}
    return ApprovalRecord.model_validate(made)


def said(by: str, second: int, value: Any = None, **more: Any) -> dict[str, Any]:
    items = [{"item_id": "t1", "decision": "approve", "value": value}]
    decider = {"name": by, "roles": ["finance"], "channel": "link", "token_id": f"k-{by}"}
    common = {"by": by, "at": AT.format(second), "items": items, "decider": decider}
    return {**common, "digest": "sha256:d", **more}


def told(made: ApprovalRecord) -> list[tuple[str, str | None, str]]:
    return [(entry.event, entry.by, entry.at[18:19]) for entry in entries_of(made)]


def test_two_votes_of_which_the_second_decides() -> None:
    first = record(**TWO, votes=[said("bob", 1)])
    both = record(
        **TWO,
        status="decided",
        votes=[said("bob", 1), said("eve", 2)],
        decision=said("eve", 2, outcome="approved"),
    )
    assert told(first) == [("requested", "ann", "0"), ("voted", "bob", "1")]
    assert told(both) == [*told(first), ("decided", "eve", "2")]
    # The entries that are in the audit already are made again, with the same content.
    assert entries_of(both)[:2] == entries_of(first)
    assert all(entry.policy == TWO["policy"] for entry in entries_of(both))
    voted = entries_of(both)[1]
    assert (voted.roles, voted.channel, voted.token_id) == (("finance",), "link", "k-bob")


def test_a_deadline_that_passes_after_a_vote() -> None:
    decision = {**said("policy", 5), "outcome": "rejected", "automatic": True}
    reason = "not decided by …"
    left = record(**TWO, status="expired", reason=reason, votes=[said("bob", 1)])
    rejected = left.model_copy(update={"decision": record(decision=decision).decision})
    assert told(left) == [
        ("requested", "ann", "0"),
        ("voted", "bob", "1"),
        ("expired", "policy", "9"),
    ]
    assert told(rejected) == [*told(left), ("decided", "policy", "5")]


def test_a_decision_of_the_policy_that_asked_nobody() -> None:
    decision = {**said("policy", 0), "outcome": "approved", "automatic": True}
    made = record(status="decided", decision=decision)
    assert [entry.event for entry in entries_of(made)] == ["requested", "decided"]


def test_a_vote_that_was_taken_back() -> None:
    taken = said("bob", 1, taken_back=AT.format(2), void=True)
    entries = entries_of(record(**TWO, votes=[taken, said("bob", 3)]))
    assert [(entry.event, entry.which, entry.at[18:19]) for entry in entries] == [
        ("requested", "1", "0"),
        ("voted", "1", "1"),
        ("taken_back", "1", "2"),
        ("voted", "2", "3"),
    ]
    assert (entries[2].by, entries[2].token_id) == ("bob", "k-bob")


def test_escalations_that_were_reached() -> None:
    escalations = [{"at": AT.format(second), "to": {"roles": ["lead"]}} for second in (3, 6)]
    assert told(record(escalations=escalations, escalated=1)) == [
        ("requested", "ann", "0"),
        ("escalated", "policy", "3"),
    ]


def test_edited_arguments_do_not_change_what_was_requested() -> None:
    asked, changed = {"amount": 5}, {"amount": 6}
    edited = record(
        items=[item(args=changed, requested_args=asked)],
        **{"digest": "sha256:new", "requested_digest": "sha256:d", "votes": [said("bob", 1)]},
    )
    before = record(items=[item(args=asked)])
    for details in (False, True):
        assert entries_of(edited, details)[0] == entries_of(before, details)[0]


def test_a_credential_is_in_no_entry_and_in_no_digest() -> None:
    def decided(secret: str) -> ApprovalRecord:
        return record(
            items=[item("credential")],
            status="decided",
            votes=[said("bob", 1, secret)],
            decision=said("bob", 1, secret, outcome="approved"),
        )

    one, other = decided("hunter2"), decided("swordfish")
    assert entries_of(one, with_details=True) == entries_of(other, with_details=True)
    assert sent(one, AT) == sent(other, AT) is not None
    details = entries_of(one, with_details=True)[-1].details
    assert details is not None
    assert details["items"]["t1"] == {}


def test_details_are_limited() -> None:
    args = {"text": "x" * MAX_DETAILS_BYTES}
    (entry,) = entries_of(record(items=[item(tool="t", args=args)]), with_details=True)
    assert entry.details is not None
    assert entry.details.keys() == {"bytes", "digest"}
    assert len(canonical(entry.details)) < 200


def test_what_happened_in_turns_is_written_in_the_same_order_again() -> None:
    """NATS may lose the end of AUDIT. Other numbers would give the lost records other hashes."""
    bob, eve = said("bob", 1), said("eve", 5)
    asked = {"kind": "question", "by": "eve", "decider": eve["decider"], "text": "Why?"}
    steps = {"escalations": [{"at": AT.format(4), "to": {"roles": ["leads"]}}]}
    states = (
        {"votes": [bob]},
        {"votes": [bob | {"void": True, "taken_back": AT.format(2)}]},
        {"remarks": [asked | {"at": AT.format(3)}]},
        {"escalated": 1},
        {"votes": [bob | {"void": True, "taken_back": AT.format(2)}, eve]},
    )
    fields: dict[str, Any] = {**TWO, **steps}
    chain: list[Link] = []
    for state in states:
        fields |= state
        chain += written(chain, entries_of(record(**fields)))
    assert [each.record["event"] for each in chain] == [
        *("requested", "voted", "taken_back", "remarked", "escalated", "voted")
    ]
    assert written([], entries_of(record(**fields))) == chain


def written(chain: list[Link], entries: list[Entry]) -> list[Link]:
    """Return the records that the audit gets for the entries that the chain does not have."""
    both = list(chain)
    for entry in missing(chain, entries):
        both.append(link("r", entry, both[-1] if both else None))
    return both[len(chain) :]
