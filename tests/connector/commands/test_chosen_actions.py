"""The decisions of a connector about a command, from the data that it has read, without a bus."""

from __future__ import annotations

import pytest

from penstock.bus import Stored, messages
from penstock.bus.records.legs import Claim, SendingState, Sent
from penstock_connector.commands import cancel, continue_, start
from penstock_connector.commands.cancel import Reply
from penstock_connector.commands.continue_ import OpenDecision, decide_to_open
from penstock_connector.state.claims import ClaimedSending
from penstock_connector.state.connectors import Liveness


def frame(kind: str, leg: int = 1) -> Stored:
    return Stored("rawp.0.r.upstream", 7, {messages.KIND: kind, messages.LEG: str(leg)}, b"{}")


HELD, CANCELLED = Claim(pod="a"), Claim(pod="a", state="cancelled")
OURS, ALIVE, SILENT, DEAD = Liveness.OURS, Liveness.ALIVE, Liveness.SILENT, Liveness.DEAD


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        pytest.param(start.StartFacts(None), start.Action.OPEN, id="the claim is new"),
        pytest.param(start.StartFacts(CANCELLED), start.Action.NOTHING, id="the run was cancelled"),
        pytest.param(
            start.StartFacts(HELD, is_held_here=True),
            start.Action.NOTHING,
            id="its leg is held here",
        ),
        *(
            pytest.param(
                start.StartFacts(HELD, last=frame("bytes"), claimer=who),
                then,
                id=f"open, {who.value}",
            )
            for who, then in (
                (OURS, start.Action.TAKE_OVER_LEG),
                (ALIVE, start.Action.NOTHING),
                (SILENT, start.Action.NOTHING),
                (DEAD, start.Action.TAKE_OVER_LEG),
            )
        ),
        *(
            pytest.param(start.StartFacts(HELD, claimer=who), then, id=f"not open, {who.value}")
            for who, then in (
                (OURS, start.Action.OPEN_AGAIN),
                (ALIVE, start.Action.WAIT),
                (SILENT, start.Action.TAKE_OVER_CLAIM),
                (DEAD, start.Action.TAKE_OVER_CLAIM),
            )
        ),
    ],
)
def test_a_start(seen: start.StartFacts, action: start.Action) -> None:
    assert start.choose_action(seen) is action


def sending(state: SendingState = "claimed") -> ClaimedSending:
    return ClaimedSending(Sent(pod="a", state=state), 3)


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        pytest.param(
            continue_.ContinueFacts(None, 2), continue_.Action.SEND, id="the claim is new"
        ),
        *(
            pytest.param(
                continue_.ContinueFacts(sending(state), 2), continue_.Action.NOTHING, id=state
            )
            for state in ("done", "refused", "outcome_unknown")
        ),
        *(
            pytest.param(
                continue_.ContinueFacts(sending(), 2, frame("open", leg), claimer=ALIVE),
                continue_.Action.TAKE_OVER_LEG,
                id=f"leg {leg} is open",
            )
            for leg in (2, 3)
        ),
        *(
            pytest.param(
                continue_.ContinueFacts(sending(), 2, frame("end"), claimer=who),
                then,
                id=f"not open, {who.value}",
            )
            for who, then in (
                (OURS, continue_.Action.SEND),
                (ALIVE, continue_.Action.WAIT),
                (SILENT, continue_.Action.TAKE_OVER_SENDING),
                (DEAD, continue_.Action.TAKE_OVER_SENDING),
            )
        ),
    ],
)
def test_a_continue(seen: continue_.ContinueFacts, action: continue_.Action) -> None:
    assert continue_.choose_action(seen) is action


@pytest.mark.parametrize(
    ("last", "may_be_lost", "has_ended", "decision"),
    [
        (frame("end"), False, False, OpenDecision.OPEN),
        (None, False, False, OpenDecision.OPEN),
        (frame("open", 2), True, True, OpenDecision.LOOK_AGAIN),
        (frame("end"), True, True, OpenDecision.END_AS_LOST),
        (None, True, False, OpenDecision.END_AS_LOST),
        (frame("end"), False, True, OpenDecision.REFUSE),
        (frame("event"), False, False, OpenDecision.REFUSE),
    ],
)
def test_a_decision_whose_sending_is_ours(
    last: Stored | None, may_be_lost: bool, has_ended: bool, decision: OpenDecision
) -> None:
    found = decide_to_open(last, 2, may_be_lost=may_be_lost, has_ended=has_ended)
    assert found is decision


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (cancel.CancelFacts(Reply.ACCEPTED), cancel.Action.WAIT_FOR_END),
        (cancel.CancelFacts(Reply.NO_ANSWER), cancel.Action.WAIT),
        (cancel.CancelFacts(Reply.NO_ANSWER, frame("bytes")), cancel.Action.WAIT),
        (cancel.CancelFacts(Reply.NO_ANSWER, frame("end")), cancel.Action.WAIT),
        (
            cancel.CancelFacts(Reply.NO_ANSWER, frame("end"), has_ended=True),
            cancel.Action.NOTHING,
        ),
        (cancel.CancelFacts(Reply.NO_HOLDER), cancel.Action.END_UNSTARTED),
        (cancel.CancelFacts(Reply.NO_HOLDER, has_ended=True), cancel.Action.NOTHING),
        (cancel.CancelFacts(Reply.NO_HOLDER, frame("lost")), cancel.Action.CANCEL_BETWEEN_LEGS),
        (
            cancel.CancelFacts(Reply.NO_HOLDER, frame("open"), start_is_cancelled=True),
            cancel.Action.END_UNCALLED,
        ),
        (cancel.CancelFacts(Reply.NO_HOLDER, frame("claim"), is_held=True), cancel.Action.WAIT),
        (cancel.CancelFacts(Reply.NO_HOLDER, frame("claim")), cancel.Action.TAKE_OVER),
    ],
)
def test_a_cancel(seen: cancel.CancelFacts, action: cancel.Action) -> None:
    assert cancel.choose_action(seen) is action
