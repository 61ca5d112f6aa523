"""What a run's checker finds is in no event; only the run itself waits for the checker, and it gets
the same events however often it is folded."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
import yaml

from penstock.bus import Bus, Msg, subjects
from penstock.bus.messages import RawFrame
from penstock.bus.records.runs import RunRecord
from penstock.bus.records.webhooks import CheckReply, CheckRequest
from penstock.dialects.base import Draft
from penstock.dialects.decoders import DECODERS
from penstock.events import parse, typed_data
from penstock.runs.calls import CallJob
from penstock.turns import TenantUser
from penstock_automations.actions.webhook.breaker import FAILURES, State
from penstock_automations.rules.calls import rule_of_call
from penstock_automations.service import AutomationsService
from penstock_normalizer.fold.checking import Findings, Question
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.redacting import RunRedactions
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.checks import MAX_BYTES, Checks, findings_of
from support.drive.automations import Automations, automations
from support.drive.bus import connected
from support.drive.normalizing import Run, normalizer
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.fakes.raw import RUN_ID, Frames, agno, agno_approved, agno_pause, agno_text, agui
from support.fakes.receiver import (
    SECRET,
    Behaviour,
    Received,
    answers,
    garbage,
    hangs,
    receiver,
    resets,
)
from support.real.deployment import deployment
from support.real.nats import NatsServer
from support.real.ports import free_port

AGENTS: list[dict[str, Any]] = [
    {"id": "a", "protocol": "agno", "url": "http://127.0.0.1:9", "agent": "demo"}
]
MAIL, NAME = "joe@example.com", "Ada Lovelace"
ANSWER = f"{NAME} is {MAIL}; write to {NAME}."
CLEAN = "[PERSON_1] is [EMAIL_1]; write to [PERSON_1]."
SEEN = f"{NAME} is [EMAIL_1]; write to {NAME}."


def redactions(action: str = "mask", on_failure: str = "closed", **check: Any) -> dict[str, Any]:
    rule = {"id": "r", "kinds": ["email"], "action": "mask"}
    check = {"url": "https://x.example", "timeout_s": 5.0, "action": action, **check}
    return {"version": 3, "rules": [rule], "check": {**check, "on_failure": on_failure}}


def frames(protocol: str = "agno", **facts: Any) -> Frames:
    return Frames(protocol, **{"redactions": redactions(), **facts})


def finds_names(text: str) -> Findings:
    return [(m.start(), m.end(), "person", "mask") for m in re.finditer(NAME, text)]


def blocks_names(text: str) -> Findings:
    return [(m.start(), m.end(), "person", "block") for m in re.finditer(NAME, text)][:1]


def cannot_say(text: str) -> Findings:
    return None


class Folding:
    """A fold whose questions are answered; `asked` has the texts that the checker saw."""

    def __init__(self, finds: Callable[[str], Findings] = finds_names) -> None:
        self.fold = RunFold(RUN_ID, DECODERS)
        self.finds = finds
        self.asked: list[str] = []

    def feed(self, *source: RawFrame) -> list[CanonicalEvent]:
        events = []
        for frame in source:
            for step in self.fold.events(copy.copy(frame)):
                if isinstance(step, Question):
                    self.asked += step.texts
                    step.findings = list(map(self.finds, step.texts))
                elif isinstance(step, CanonicalEvent):
                    events.append(step)
        return events


def said(events: list[CanonicalEvent], type_: str = "llm.stream", name: str = "content") -> str:
    return "".join(event.data[name] for event in events if event.type == type_)


def with_names(texts: Iterable[str]) -> set[str]:
    """Return the texts with a part of a name; the ids of an unknown event are asked about, too."""
    return {text for text in texts if "Ada" in text or "Lovelace" in text}


def check_clean(events: list[CanonicalEvent], *secrets: str) -> None:
    """Check that the events are valid, numbered without gaps, and have no secret."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    for event in events:
        parse(event.body)
        typed_data(event.type, event.data)
        for secret in secrets or (MAIL, NAME):
            assert secret not in event.body.decode(), event.body


# The fold


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_message_is_checked_whole_after_the_patterns_however_it_comes(size: int) -> None:
    run, folding = frames(message=f"I am {NAME}"), Folding()
    chunks = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    events = folding.feed(run.open(), run.bytes(agno_text(*chunks)), run.end())
    check_clean(events)
    assert events[0].data["message"] == folding.fold.facts["message"] == "I am [PERSON_1]"
    assert said(events) == said(events, "llm.message_completed") == CLEAN
    assert [event.type for event in events].count("llm.stream") == 1
    assert said(events, "lifecycle.completed", "summary") == CLEAN
    assert with_names(folding.asked) == {f"I am {NAME}", SEEN}
    [completed] = [event for event in events if event.type == "llm.message_completed"]
    assert orjson.loads(completed.body)["redactions"] == [
        {"field": "content", "kind": "email", "count": 1},
        {"field": "content", "kind": "person", "count": 2},
    ]


@pytest.mark.parametrize("size", [3, 1000])
def test_texts_of_arguments_and_results_are_checked_and_no_keys_and_numbers(size: int) -> None:
    args = {"to": NAME, "n": [4711], "note": f'"{NAME}"\n', "deep": [{"x": f"for {NAME}"}]}
    text = json.dumps(args)
    call = {"toolCallId": "c1"}
    body = b"".join(
        f"data: {json.dumps(event)}\n\n".encode()
        for event in (
            {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
            {"type": "TOOL_CALL_START", "toolCallName": "send", **call},
            *(
                {"type": "TOOL_CALL_ARGS", "delta": text[at : at + size], **call}
                for at in range(0, len(text), size)
            ),
            {"type": "TOOL_CALL_END", **call},
            {
                **{"type": "TOOL_CALL_RESULT", "messageId": "m2", "role": "tool", **call},
                "content": json.dumps({"sent": [NAME]}),
            },
            {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
        )
    )
    run, folding = frames("agui"), Folding()
    events = folding.feed(run.open(), run.bytes(body), run.end())
    check_clean(events)
    note = '"[PERSON_1]"\n'
    clean = {"to": "[PERSON_1]", "n": [4711], "note": note, "deep": [{"x": "for [PERSON_1]"}]}
    assert json.loads(said(events, "llm.tool_args", "delta")) == clean
    [called] = [event for event in events if event.type == "llm.tool_call"]
    assert called.data["args"] == clean
    assert not {"to", "deep", "4711", text} & set(folding.asked)


def test_who_decides_sees_what_the_checker_left_and_cannot_change_it() -> None:
    run, folding = frames(), Folding()
    events = folding.feed(run.open(), run.bytes(agno_pause(path=NAME)), run.end())
    check_clean(events)
    [item] = events[-1].data["items"]
    assert (item["args"], item["editable"]) == ({"path": "[PERSON_1]"}, False)
    assert folding.fold.pending is not None
    assert NAME in json.dumps(folding.fold.pending.resume), "the agent server gets what it sent"


def test_a_run_that_continues_from_its_stored_pause_gives_the_same_bytes() -> None:
    run, folding, restored = frames(), Folding(), Folding()
    folding.feed(run.open(), run.bytes(agno_pause(path=NAME)), run.end())
    restored.fold.restore(orjson.loads(orjson.dumps(folding.fold.snapshot())))
    approval_id = folding.fold.approval_id
    assert approval_id is not None
    rest = [run.open_next(approval_id, t1="approve"), run.bytes(agno_approved()), run.end()]
    once = [event.body for event in folding.feed(*rest)]
    assert once == [event.body for event in restored.feed(*rest)]


def test_the_same_findings_give_the_same_bytes_and_frames_with_findings_make_no_event() -> None:
    run = frames()
    source = [run.open(), run.bytes(agno_text(ANSWER)), run.end()]
    once = [event.body for event in Folding().feed(*source)]
    later = run.frame("checked", b"{}", "checks")
    assert [event.body for event in Folding().feed(*source, later)] == once


def test_what_the_checker_blocks_ends_the_message_before_it_and_the_run() -> None:
    run, folding = frames(), Folding(blocks_names)
    body = agno_text("Yes: ", ANSWER) + agno("RunContent", content="and more")
    events = folding.feed(run.open(), run.bytes(body))
    check_clean(events, "Ada", "Love", MAIL)
    assert folding.fold.blocked == "person"
    *_, completed, warning, ended = events
    assert completed.data["content"] == "Yes: "
    assert (warning.type, warning.data["code"]) == ("system.warning", "blocked")
    assert (ended.type, ended.data["reason"]) == ("lifecycle.cancelled", "blocked")
    assert folding.feed(run.bytes(agno("RunContent", content=NAME)), run.end("cancelled")) == []


@pytest.mark.parametrize(
    "body",
    [
        agno("RunStarted") + agno("RunError", content=f"no {NAME}"),
        agno("RunStarted") + agno("RunCompleted", content=NAME),
        agno_pause(path=NAME),
        agno("RunStarted") + agno("CustomEvent", content={"x": NAME}),
    ],
    ids=["an error", "an answer in one piece", "a question", "an unknown event"],
)
def test_what_the_checker_blocks_is_in_no_event_of_any_type(body: bytes) -> None:
    run, folding = frames(), Folding(blocks_names)
    events = folding.feed(run.open(), run.bytes(body), run.end())
    check_clean(events, "Ada", "Love")
    assert events[-1].type == "lifecycle.cancelled"
    assert folding.fold.pending is None


def test_a_text_that_could_not_be_checked_passes_or_stops_the_run_as_the_rule_says() -> None:
    run, folding = frames(redactions=redactions(on_failure="open")), Folding(cannot_say)
    events = folding.feed(run.open(), run.bytes(agno_text(ANSWER)), run.end())
    check_clean(events, MAIL)
    assert said(events) == SEEN, "the patterns still count"
    [completed] = [event for event in events if event.type == "llm.message_completed"]
    found = {each["kind"]: each["count"] for each in orjson.loads(completed.body)["redactions"]}
    assert found == {"email": 1, "unchecked": 1}

    run, folding = frames(message=""), Folding(cannot_say)
    events = folding.feed(run.open(), run.bytes(agno_text(ANSWER)))
    check_clean(events, MAIL, "Ada", "write to")
    *_, warning, ended = events
    assert "could not be checked" in warning.data["message"]
    assert ended.data["reason"] == "blocked"


def test_the_pieces_of_an_argument_are_checked_when_it_ends() -> None:
    by = RunRedactions.of(RUN_ID, redactions(), is_workflow=False)
    call = {"tool_call_id": "c1", "tool": "send", "path": "$.to"}
    drafts = [
        Draft("llm.tool_args", {**call, "value": "To Ada "}),
        Draft("llm.tool_args", {**call, "value": "Lovelace", "final": True}),
        Draft("llm.tool_call", {"tool_call_id": "c1", "tool": "send", "args": {}}),
    ]
    steps: list[Draft] = []
    for draft in drafts:
        for step in by.apply(draft):
            if isinstance(step, Question):
                step.findings = list(map(finds_names, step.texts))
            elif isinstance(step, Draft):
                steps.append(step)
    assert [each.data.get("value") for each in steps] == ["To [PERSON_1]", None]


# What a checker answers


def test_findings_are_put_in_order_and_what_blocks_counts_before_all() -> None:
    found = [
        {"text": 0, "start": 4, "end": 9, "kind": "LOCATION"},
        {"text": 0, "start": 0, "end": 3, "kind": "person", "action": "drop"},
        {"text": 0, "start": 2, "end": 5, "kind": "date"},
        {"text": 1, "kind": "toxic", "action": "block"},
        {"text": 1, "start": 0, "end": 1, "kind": "person"},
        {"text": 2, "start": 4, "end": 6, "kind": "toxic", "action": "block"},
        {"text": 2, "start": 0, "end": 2, "kind": "person"},
        {"text": 2, "start": 7, "end": 8, "kind": "person"},
    ]
    assert findings_of({"found": found}, ["in Paris.", "all of it", "x" * 8, "no"], "mask") == [
        [(0, 3, "person", "drop"), (4, 9, "location", "mask")],
        [(0, 9, "toxic", "block")],
        [(0, 2, "person", "mask"), (4, 6, "toxic", "block")],
        [],
    ]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"finding": [{"text": 0, "kind": "x"}]},
        {"found": [{"text": 1, "kind": "x"}]},
        {"found": [{"text": 0, "start": 2, "end": 9, "kind": "x"}]},
        {"found": [{"text": 0, "start": 2, "end": 2, "kind": "x"}]},
        {"found": [{"text": 0, "kind": "a b"}]},
        {"found": [{"text": 0, "kind": "x", "action": "explode"}]},
    ],
)
def test_an_answer_that_names_what_is_not_there_counts_as_none(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"its answer (has another form|names)"):
        findings_of(answer, ["four"], "mask")


@pytest.mark.parametrize("hidden", [NAME, MAIL])
def test_what_a_repeated_key_of_arguments_hides_is_in_no_event(hidden: str) -> None:
    args = f'{{"to": "{hidden}", "to": "x"}}'
    run, folding = frames("agui"), Folding()
    call = {"toolCallId": "t1"}
    begun = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "TOOL_CALL_START", "toolCallName": "mail", **call},
        {"type": "TOOL_CALL_ARGS", "delta": args, **call},
        {"type": "TOOL_CALL_END", **call},
    )
    events = folding.feed(run.open(), run.bytes(begun), run.end())
    check_clean(events)
    assert said(events, "llm.tool_args", "delta") == '{"to":"x"}'


# With a real server, and the automations service that makes the requests


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(
    nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Automations]:
    """Run the automations service and a checker, and no normalizer."""
    file: Path = tmp_path_factory.mktemp("secrets") / "secrets.yaml"
    file.write_text(
        yaml.safe_dump({"secrets": [{"name": "ours", "hosts": ["127.0.0.1"], "secrets": [SECRET]}]})
    )
    async with automations(nats_server.url, others=(), call_secrets=file) as running:
        yield running


def finds(word: str = NAME, action: str | None = None) -> Behaviour:
    """Answer where the word is."""

    async def behave(writer: asyncio.StreamWriter, received: Received) -> None:
        found = [
            {"text": number, "start": match.start(), "end": match.end(), "kind": "PERSON"}
            | ({"action": action} if action is not None else {})
            for number, text in enumerate(received.json["texts"])
            for match in re.finditer(word, text)
        ]
        await answers(200, json.dumps({"found": found}))(writer, received)

    return behave


def checked_by(made: Automations, path: str, **check: Any) -> dict[str, Any]:
    return redactions(url=made.receiver.url(path), secret="ours", **check)


async def begin(bus: Bus, rules: dict[str, Any], user_id: str = "u") -> Run:
    run = Run(bus)
    await run.open(redactions=rules, message=f"I am {NAME}", user_id=user_id)
    return run


def content(events: list[Any], action: str = "message_completed") -> list[str]:
    bodies = [orjson.loads(event.payload) for event in events]
    return [body["data"]["content"] for body in bodies if body["event"]["action"] == action]


async def test_a_checker_gets_texts_over_a_signed_request_and_its_findings_are_masked(
    made: Automations, nats_server: NatsServer
) -> None:
    made.receiver.usual["/names"] = finds()
    async with normalizer(nats_server.url):
        run = await begin(made.bus, checked_by(made, "/names"))
        await run.bytes(agno_text(ANSWER))
        await run.end()
        events = await run.until("lifecycle.completed")
    assert content(events) == content(events, "stream") == [CLEAN]
    bodies = [received.json for received in made.receiver.got("/names")]
    texts = [text for body in bodies for text in body["texts"]]
    assert sorted(texts) == sorted({f"I am {NAME}", SEEN, *texts}), "each text once"
    assert {(body["run_id"], body["agent"]) for body in bodies} == {(run.run_id, "a")}
    record = await made.bus.bucket("runs").load(run.run_id, RunRecord)
    assert record is not None
    assert record.message == "I am [PERSON_1]"


async def test_only_the_run_that_asks_waits_for_its_checker(
    made: Automations, nats_server: NatsServer
) -> None:
    made.receiver.usual["/quick"] = finds()
    may_answer = asyncio.Event()

    async def waits(writer: asyncio.StreamWriter, received: Received) -> None:
        await may_answer.wait()
        await finds()(writer, received)

    made.receiver.usual["/waits"] = waits
    async with normalizer(nats_server.url):
        slow = await begin(made.bus, checked_by(made, "/waits", timeout_s=30.0))
        await made.receiver.count(1, "/waits")
        others = [await begin(made.bus, checked_by(made, "/quick"), "v"), Run(made.bus)]
        await others[1].open()
        for run in others:
            await run.bytes(agno_text(ANSWER))
            await run.end()
            await run.until("lifecycle.completed")
        assert await slow.events() == [], "it still waits"
        may_answer.set()
        await slow.bytes(agno_text(ANSWER))
        await slow.end()
        events = await slow.until("lifecycle.completed")
    assert content(events) == [CLEAN]


async def test_what_was_found_counts_for_every_later_normalizer(
    made: Automations, nats_server: NatsServer
) -> None:
    """The first ends while the checker is asked, the second in the midst of the run."""
    made.receiver.plans["/later"] = [hangs()]
    made.receiver.usual["/later"] = finds()
    async with normalizer(nats_server.url):
        run = await begin(made.bus, checked_by(made, "/later"))
        await made.receiver.count(1, "/later")
    async with normalizer(nats_server.url):
        await run.bytes(agno_text(ANSWER)[: -len(agno("RunCompleted", content=ANSWER))])
        await run.until("llm.message_completed")
    made.receiver.usual["/later"] = finds("is", "block")
    async with normalizer(nats_server.url):
        await run.bytes(agno("RunCompleted", content=ANSWER))
        await run.end()
        events = await run.until("lifecycle.completed")
    assert orjson.loads(events[-1].payload)["data"]["summary"] == CLEAN
    seen = [text for each in made.receiver.got("/later") for text in each.json["texts"]]
    assert seen.count(SEEN) == 1, "nobody asked again"


async def test_of_two_normalizers_that_ask_the_first_that_stores_counts(made: Automations) -> None:
    made.receiver.usual["/twice"] = finds()
    run = Run(made.bus)
    fold = RunFold(run.run_id, DECODERS)
    fold.facts = {"agent": "a", "redactions": checked_by(made, "/twice")}
    one, other = Checks(made.bus, run.run_id), Checks(made.bus, run.run_id)
    questions = [Question([NAME]), Question([NAME]), Question(["no", NAME])]
    await asyncio.gather(one.answer(questions[0], fold), other.answer(questions[1], fold))
    made.receiver.usual["/twice"] = finds("no", "block")
    await other.answer(questions[2], fold)
    again = Question(["no", NAME])
    await Checks(made.bus, run.run_id).answer(again, fold)
    found = [list(map(list, each or ())) for each in questions[0].findings]
    assert found == [[[0, len(NAME), "person", "mask"]]]
    assert [list(map(list, each or ())) for each in questions[1].findings] == found
    expected = [[[0, 2, "person", "block"]], *found]
    for question in (questions[2], again):
        assert [list(map(list, each or ())) for each in question.findings] == expected


async def test_a_text_that_is_too_long_is_not_sent_and_many_go_in_several_requests(
    made: Automations,
) -> None:
    made.receiver.usual["/long"] = finds()
    run = Run(made.bus)
    fold = RunFold(run.run_id, DECODERS)
    fold.facts = {"agent": "a", "redactions": checked_by(made, "/long")}
    long = "x" * (MAX_BYTES + 1)
    texts = [f"{number} {NAME}" for number in range(700)]
    question = Question([long, *texts])
    await Checks(made.bus, run.run_id).answer(question, fold)
    assert question.findings[0] is None
    assert all(question.findings[1:])
    assert [len(each.json["texts"]) for each in made.receiver.got("/long")] == [500, 200]


async def test_texts_with_many_escapes_are_asked_in_requests_that_are_small_enough(
    made: Automations,
) -> None:
    made.receiver.usual["/quotes"] = finds()
    run = Run(made.bus)
    fold = RunFold(run.run_id, DECODERS)
    fold.facts = {"agent": "a", "redactions": checked_by(made, "/quotes", timeout_s=1.0)}
    question = Question([f"{number}{NAME}" + '"' * (MAX_BYTES // 3) for number in range(2)])
    await Checks(made.bus, run.run_id).answer(question, fold)
    assert all(question.findings)


async def test_a_checker_that_is_away_for_two_seconds_is_asked_when_it_is_back(
    made: Automations,
) -> None:
    began = asyncio.get_running_loop().time()

    async def comes_back(writer: asyncio.StreamWriter, received: Received) -> None:
        is_back = asyncio.get_running_loop().time() > began + 2
        await (finds() if is_back else answers(503))(writer, received)

    made.receiver.usual["/back"] = comes_back
    run, question = Run(made.bus), Question([NAME])
    fold = RunFold(run.run_id, DECODERS)
    fold.facts = {"agent": "a", "user_id": "back", "redactions": checked_by(made, "/back")}
    await Checks(made.bus, run.run_id).answer(question, fold)
    assert question.findings[0]


async def test_a_check_whose_process_was_killed_is_asked_again_and_its_checker_is_not(
    made: Automations,
) -> None:
    made.receiver.usual["/lost"] = hangs()
    run, question, asked = Run(made.bus), Question([NAME]), list[Msg]()
    fold = RunFold(run.run_id, DECODERS)
    fold.facts = {"agent": "a", "redactions": checked_by(made, "/lost")}

    async def answers_the_third(msg: Msg) -> None:
        """By then, the process that is alive would have asked again because of the second."""
        asked.append(msg)
        if len(asked) == 3:
            found = [{"text": 0, "kind": "person"}]
            await made.bus.client.publish(msg.reply, CheckReply(answer={"found": found}).dump())

    listening = await made.bus.subscribe(subjects.check(run.run_id), answers_the_third)
    try:
        await Checks(made.bus, run.run_id).answer(question, fold)
    finally:
        await listening.unsubscribe()
    assert question.findings == [[(0, len(NAME), "person", "mask")]]
    assert len(made.receiver.got("/lost")) == 1, "a process that is alive has it asked once"


async def test_checkers_and_calls_of_one_user_to_one_server_do_not_stop_each_other(
    made: Automations,
) -> None:
    began = asyncio.get_running_loop().time()

    async def comes_back(writer: asyncio.StreamWriter, received: Received) -> None:
        is_back = asyncio.get_running_loop().time() > began + 0.7
        await (finds() if is_back else answers(503))(writer, received)

    made.receiver.usual["/restarts"] = comes_back
    [service] = [each for each in made.penstock.services if isinstance(each, AutomationsService)]
    endpoints = service._checks._webhooks.endpoints
    user = TenantUser("", "both")
    call = CallJob(run_id="r", step_id="s", call_id="c", url=made.receiver.url("/restarts"))
    rule = rule_of_call(call, {}, user)
    assert rule.record.rule.action.webhook is not None
    of_calls = endpoints.of(rule, rule.record.rule.action.webhook)
    for _ in range(FAILURES):
        of_calls.breaker.record_failure(time.monotonic())

    async def check(timeout_s: float) -> Findings:
        rules = checked_by(made, "/restarts", timeout_s=timeout_s)
        run, question = Run(made.bus), Question([NAME])
        fold = RunFold(run.run_id, DECODERS)
        fold.facts = {"agent": "a", "user_id": "both", "redactions": rules}
        await Checks(made.bus, run.run_id).answer(question, fold)
        return question.findings[0]

    assert all(await asyncio.gather(*(check(5.0) for _ in range(2 * FAILURES))))
    assert of_calls.breaker.state is State.OPEN, "the calls still wait"
    made.receiver.usual["/restarts"] = answers(503)
    of_calls.breaker.record_success()
    assert await check(1.0) is None
    assert of_calls.breaker.failures == 0, "a checker that fails stops no calls"


async def test_checks_do_not_pile_up_and_are_given_back_when_their_process_ends(
    made: Automations,
) -> None:
    made.receiver.usual |= {"/full": hangs(), "/free": finds()}

    def request(path: str, user_id: str, number: int) -> bytes:
        body = {"run_id": "r", "agent": "a", "texts": [f"{number} {NAME}"]}
        url = made.receiver.url(path)
        return CheckRequest(
            url=url, body=body, timeout_s=20.0, secret="ours", user_id=user_id
        ).dump()

    async def ask(path: str, user_id: str, number: int = 0) -> CheckReply:
        sent = await made.bus.request(subjects.check("r"), request(path, user_id, number), 30)
        return CheckReply.model_validate_json(sent.data)

    asking = [asyncio.create_task(ask("/full", "many", number)) for number in range(200)]
    refused, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result().error for task in refused} == {"no request is made now (capacity)"}
    assert (await ask("/free", "few")).answer is not None, "another user is served"
    [service] = [each for each in made.penstock.services if isinstance(each, AutomationsService)]
    await service._checks.stop()
    rest = await asyncio.gather(*waiting)
    assert sum(each.error == "the process is ending" for each in rest) >= 32


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_no_run_is_stopped_when_a_process_that_asks_is_killed(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async def slow(writer: asyncio.StreamWriter, received: Received) -> None:
        await asyncio.sleep(1.0)
        await finds()(writer, received)

    services = {"automations": 2, "normalizer": 1}
    async with (
        receiver() as checker,
        deployment(
            fresh_nats.url, tmp_path / "p", AGENTS, services, webhook_allow_hosts="127.0.0.1"
        ) as penstock,
        connected(fresh_nats.url) as bus,
    ):
        checker.usual["/slow"] = slow
        rules = redactions(url=checker.url("/slow"))
        runs = [await begin(bus, rules, f"u{number}") for number in range(20)]
        await checker.count(10, "/slow")
        await penstock.kill(penstock.of("automations")[0])
        for run in runs:
            await run.bytes(agno_text(ANSWER))
            await run.end()
        for run in runs:
            assert content(await run.until("lifecycle.completed")) == [CLEAN]


FAILING: dict[str, Behaviour] = {
    "/status": answers(503),
    "/form": answers(200, '{"found": 1}'),
    "/garbage": garbage,
    "/resets": resets,
    "/hangs": hangs(),
}


async def test_a_checker_that_fails_stops_the_runs_that_must_not_go_on(
    made: Automations, nats_server: NatsServer
) -> None:
    made.receiver.usual |= FAILING
    failing = {path: checked_by(made, path, timeout_s=1.0) for path in FAILING}
    failing["private"] = redactions(url="http://10.1.2.3/private", timeout_s=1.0)
    failing["no secret"] = redactions(url=made.receiver.url("/x"), secret="none", timeout_s=1.0)
    is_open = checked_by(made, "/status", timeout_s=1.0, on_failure="open")
    async with normalizer(nats_server.url):
        runs = {name: await begin(made.bus, rules, name) for name, rules in failing.items()}
        passing = await begin(made.bus, is_open, "open")
        for name, run in runs.items():
            events = await run.until("lifecycle.cancelled")
            assert NAME.encode() not in b"".join(event.payload for event in events), name
            warning = orjson.loads(events[-2].payload)
            assert "could not be checked" in warning["data"]["message"], name
        [started] = await passing.until("lifecycle.started")
    body = orjson.loads(started.payload)
    assert body["data"]["message"] == f"I am {NAME}"
    assert body["redactions"] == [{"field": "message", "kind": "unchecked", "count": 1}]


async def test_the_checker_of_the_document_runs(tmp_path: Path) -> None:
    document = (ROOT / "docs/privacy.md").read_text("utf-8")
    [code] = re.findall(r"```python\n(import json, re\n.*?)```", document, re.DOTALL)
    port = free_port()
    file = tmp_path / "checker.py"
    file.write_text(code.replace("9100", str(port)))
    server = subprocess.Popen([sys.executable, str(file)], stderr=subprocess.DEVNULL)
    texts = ["no", "Ask Ada Lovelace and Grace Hopper."]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/check", json.dumps({"texts": texts}).encode(), method="POST"
    )

    async def answer() -> Any:
        try:
            with await asyncio.to_thread(urllib.request.urlopen, request) as response:
                return json.load(response)
        except OSError:
            return None

    try:
        found = await eventually(answer, what="the checker's answer")
    finally:
        server.kill()
        server.wait()
    assert findings_of(found, texts, "mask") == [
        [],
        [(4, 16, "person", "mask"), (21, 33, "person", "mask")],
    ]
