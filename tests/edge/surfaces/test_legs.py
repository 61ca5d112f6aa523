"""The answers in one request are joined by approval, and answers that do not fit are refused."""

from __future__ import annotations

import pytest

from penstock.bus import Bus, messages
from penstock.bus.records.approvals import ApprovalRecord, Decided
from penstock.bus.records.runs import RunRecord
from penstock.settings import Config
from penstock.web.auth.identity import NOBODY
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.settings import EdgeSettings
from penstock_edge.surfaces.legs import Answer, ItemAnswer, Reply, decide
from support.fakes.pretend import PretendApprovals


def approval(name: str) -> ApprovalRecord:
    return ApprovalRecord(
        approval_id=name,
        run_id=f"run of {name}",
        agent="assistant",
        session_id="s",
        user_id="alice",
        leg=1,
        requested_at=messages.now(),
        updated_at=messages.now(),
        digest="d",
        items=[],
    )


def workflow(name: str) -> RunRecord:
    return RunRecord(
        run_id=name,
        agent="flow",
        session_id="s",
        user_id="alice",
        created_at=messages.now(),
        updated_at=messages.now(),
    )


def answer(
    to: str, item: str = "i", root: RunRecord | None = None, digest: str | None = None
) -> ItemAnswer:
    return ItemAnswer(approval(to), root, Decided(item_id=item, decision="approve"), digest)


def joined(*answers: ItemAnswer) -> dict[str, list[str]]:
    reply = Reply.of("input", answers)
    return {
        each.approval.approval_id: [item.item_id for item in each.items] for each in reply.answers
    }


def test_answers_to_the_items_of_one_pause_are_one_answer() -> None:
    assert joined(answer("a", "1"), answer("a", "2")) == {"a": ["1", "2"]}


def test_a_workflows_pauses_are_answered_together() -> None:
    root = workflow("w")
    answers = [answer("a", root=root), answer("b", root=root)]
    assert joined(*answers) == {"a": ["i"], "b": ["i"]}
    assert Reply.of("input", answers).root is root


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([answer("a"), answer("b")], "input: the answers belong to different pauses"),
        (
            [answer("a", root=workflow("v")), answer("b", root=workflow("w"))],
            "input: the answers belong to different pauses",
        ),
        (
            [answer("a", digest="d"), answer("a", "2", digest="e")],
            "input: the answers to one pause have different digests",
        ),
    ],
)
def test_answers_that_do_not_belong_together_are_refused(
    answers: list[ItemAnswer], says: str
) -> None:
    with pytest.raises(Problem) as refused:
        Reply.of("input", answers)
    assert (refused.value.status, refused.value.detail) == (422, says)


async def test_one_answer_that_must_not_be_sent_keeps_back_the_others(bus: Bus) -> None:
    approvals = PretendApprovals(bus)
    await approvals.start()
    call = {"item_id": "i", "kind": "confirmation", "args": {"to": "ada@example.com"}}
    masked = [{**call, "args": {"to": "[EMAIL_1]"}}]
    seen_masked = approval("b").model_copy(update={"items": [call], "masked_items": masked})
    changed = Decided(item_id="i", decision="approve", args={"to": "[EMAIL_1]"})
    first = Answer(approval("a"), [Decided(item_id="i", decision="approve")])
    reply = Reply([first, Answer(seen_masked, [changed])], workflow("w"))
    edge = Edge.of(bus, Config(), EdgeSettings())
    with pytest.raises(Problem, match="masked"):
        await decide(edge, NOBODY, "agno", reply, user_id="alice")
    assert approvals.decided == []
