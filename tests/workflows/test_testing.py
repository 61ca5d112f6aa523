"""A test of a workflow gives canned answers to its steps, and names each difference."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from penstock_workflows.definition import InvalidDefinition, Loaded, load, load_value
from penstock_workflows.testing.carry_out import carry_out
from penstock_workflows.testing.document import read_tests
from support.drive.repository import ROOT

PAGE = (ROOT / "docs/workflows.md").read_text("utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
[TRIP] = [each for each in BLOCKS if each.startswith("dsl: penstock/1\nname: trip\n")]
[TRIP_TESTS] = [each for each in BLOCKS if each.startswith("workflow: trip.yaml\n")]


def flow(steps: dict[str, Any], **more: Any) -> Loaded:
    return load_value({"dsl": "penstock/1", "name": "w", "version": "1", "steps": steps, **more})


def differences(loaded: Loaded, document: str) -> list[str]:
    """Return how the runs of a document's tests differ, each with its place."""
    read = read_tests(document.encode())
    problems = [each for test in read.tests_of(loaded) for each in carry_out(test, loaded)]
    return [str(read.document.located(each)) for each in problems]


def of_case(loaded: Loaded, **case: Any) -> list[str]:
    document = yaml.safe_dump({"workflow": "x", "tests": {"t": case}}, sort_keys=False)
    return differences(loaded, document)


def test_the_tests_of_the_page_pass() -> None:
    assert differences(load(TRIP.encode()), TRIP_TESTS) == []


def test_each_difference_of_the_page_s_test_is_named_with_its_place() -> None:
    wrong = (
        TRIP_TESTS.replace("Oslo is old.]", "x")
        .replace('output: "It is sunny.', 'output: "It is cold.')
        .replace("weather in Oslo?", "weather in Rome?")
        .replace("[weather, research, summary]", "[weather, summary]")
    )
    assert differences(load(TRIP.encode()), wrong) == [
        "line 7, column 15: tests.sunny.expect.output: "
        'is "It is sunny.\\nOslo is old.", not "It is cold.\\nOslo is old."',
        "line 8, column 23: tests.sunny.expect.sent.weather: "
        'is "What is the weather in Oslo?", not "What is the weather in Rome?"',
        "line 14, column 40: tests.the research fails, and the weather at first.expect.steps: "
        'is ["weather", "research", "summary"], not ["weather", "summary"]',
    ]


RUN: dict[str, Any] = {"run": {"agent": "x", "message": '"go"'}}
CALL: dict[str, Any] = {"call": {"url": "https://x.example", "body": "input", "expect": [200, 404]}}
ASK: dict[str, Any] = {"approve": {"title": '"ok?"', "show": "input"}, "output": "result"}
LISTEN: dict[str, Any] = {"listen": {"event": "lifecycle.completed", "where": "event.data.n > 1"}}
FORM: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
EACH: dict[str, Any] = {**RUN, "for_each": {"in": "[1, 2]"}, "output": "result.text"}
FAILS: dict[str, Any] = {"status": "failed"}

# The steps, their answers, and what is expected of the run.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "an answer with data": (
        {"a": {**RUN, "output": "result.data.n + 1"}},
        {"a": {"data": {"n": 1}}},
        {"output": 2, "sent": {"a": {"agent": "x", "message": "go"}}},
    ),
    "a text that is JSON": ({"a": {**RUN, "output": "result.data.n"}}, {"a": '{"n": 1}'}, {}),
    "a failure": (
        {"a": RUN},
        {"a": {"failed": "timeout", "message": "slow"}},
        {**FAILS, "code": "timeout"},
    ),
    "a failure that is handled": (
        {"a": {**RUN, "on_failure": "b"}, "b": {"set": "a.error.message"}},
        {"a": {"failed": "timeout", "message": "slow"}},
        {"output": "slow", "steps": ["a", "b"]},
    ),
    "items": ({"a": EACH}, {"a": ["x", "y"]}, {"output": ["x", "y"], "sent": {"a": ["go", "go"]}}),
    "one answer for all items": ({"a": EACH}, {"a": "x"}, {"output": ["x", "x"]}),
    "attempts of items": (
        {"a": {**EACH, "retry": {"attempts": 2, "backoff": "1h", "codes": ["timeout"]}}},
        {"a": [["x"], [{"failed": "timeout"}, "y"]]},
        {"output": ["x", "y"]},
    ),
    "a nested workflow": (
        {"a": {"workflow": {"workflow": "v", "input": "input"}, "output": "result.data"}},
        {"a": {"data": [1]}},
        {"output": [1], "sent": {"a": {"input": {"q": 1}}}},
    ),
    "a call": (
        {"a": {**CALL, "output": "[result.status, result.data, result.headers]"}},
        {"a": {"status": 404, "data": {"n": 1}, "headers": {"ETag": "x"}}},
        {"output": [404, {"n": 1}, {"etag": "x"}], "sent": {"a": {"method": "POST"}}},
    ),
    "a call with another answer": (
        {"a": CALL},
        {"a": {"status": 500}},
        {**FAILS, "code": "http_500"},
    ),
    "a call that fails": (
        {"a": CALL},
        {"a": {"failed": "connection"}},
        {**FAILS, "code": "connection", "sent": {"a": {"body": {"q": 1}}}},
    ),
    "an approval": (
        {"a": {**ASK, "output": "[result.decision, result.by, result.note, result.data]"}},
        {"a": {"decision": "approve", "by": "ada", "note": "yes", "data": 7}},
        {"output": ["approved", "ada", "yes", 7], "sent": {"a": "ok?"}},
    ),
    "a rejection": ({"a": ASK}, {"a": "reject"}, {**FAILS, "code": "rejected"}),
    "nobody decides": ({"a": ASK}, {"a": "expire"}, {**FAILS, "code": "expired"}),
    "nobody decides in the time of the step": (
        {"a": {**ASK, "timeout": "2d"}},
        {"a": {"never": True}},
        {**FAILS, "code": "expired"},
    ),
    "an event": (
        {"a": {**LISTEN, "output": "result.data.data.n"}},
        {"a": {"data": {"n": 2}}},
        {"output": 2},
    ),
    "an event that does not fit": (
        {"a": {**LISTEN, "timeout": "1d"}},
        {"a": {"data": {"n": 1}}},
        {**FAILS, "code": "timeout"},
    ),
    "rounds": (
        {"a": {**RUN, "repeat": {"until": 'last == "y"', "rounds": 3}, "output": "result.text"}},
        {"a": ["x", "y"]},
        {"sent": {"a": ["go", "go"]}},
    ),
    "a form": (
        {"a": {"approve": {"title": '"ok?"', "form": FORM}, "output": "result.data.n"}},
        {"a": {"decision": "approve", "data": {"n": 7}}},
        {"output": 7},
    ),
    "a wait of a week": (
        {"a": {"wait": "7d"}, "b": {"needs": ["a"], "set": "string(now)"}},
        {},
        {"output": "2026-01-08T00:00:00Z"},
    ),
    "a skipped step": ({"a": {**RUN, "when": "false"}}, {}, {"steps": [], "output": None}),
    "a large output": (
        {"a": {**RUN, "output": "result.text"}, "b": {"needs": ["a"], "set": "size(a.output)"}},
        {"a": "x" * 100_000},
        {"output": 100_000},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_step_gets_its_answer(name: str) -> None:
    steps, answers, expected = CASES[name]
    loaded = flow(steps, output=f"{list(steps)[-1]}.output")
    assert of_case(loaded, input={"q": 1}, answers=answers, expect=expected) == []


def test_a_run_of_a_workflow_with_turns_has_its_turn_at_once() -> None:
    loaded = flow({"a": {"set": "1"}}, exclusive={"key": "input.q"}, output="a.output")
    assert of_case(loaded, input={"q": "x"}, expect={"output": 1}) == []


def test_a_run_is_cancelled_at_a_step_and_its_always_steps_run() -> None:
    undo = {"needs": ["b"], "set": "b.status", "always": True}
    loaded = flow({"a": RUN, "b": {**RUN, "needs": ["a"]}, "undo": undo})
    expected = {"status": "cancelled", "steps": ["a", "b", "undo"]}
    assert of_case(loaded, cancel_at="b", answers={"a": "x"}, expect=expected) == []


# A step and its answer, what is expected, and what is told.
DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no answer": ({}, {}, "tests.t.answers.a: the test has no answer to the step a"),
    "no answer to an attempt": (
        {"answers": {"a": [{"failed": "not_sent"}]}},
        {},
        "the test has no answer to attempt 2 of the step a",
    ),
    "a status": (
        {"answers": {"a": {"failed": "x"}}},
        {},
        "tests.t.expect.status: the run is failed (x: the step a failed: the test says so), "
        "not completed",
    ),
    "a code": (
        {"answers": {"a": {"failed": "x"}}},
        {"status": "failed", "code": "y"},
        'tests.t.expect.code: is "x", not "y"',
    ),
    "a value inside": (
        {"answers": {"a": {"data": {"n": [1, 2], "m": 1, "k": 1}}}},
        {"output": {"n": [1, True], "l": 1, "m": 1.0}},
        "tests.t.expect.output.n.1: is 2, not true|tests.t.expect.output.l: is missing|"
        "tests.t.expect.output: has 'k', too: 1",
    ),
    "true is not 1": ({"answers": {"a": {"data": True}}}, {"output": 1}, "is true, not 1"),
    "what is sent": (
        {"answers": {"a": "x"}},
        {"sent": {"a": {"agent": "y"}}},
        'tests.t.expect.sent.a.agent: is "x", not "y"',
    ),
    "how often": (
        {"answers": {"a": "x"}},
        {"sent": {"a": ["go", "go"]}},
        "tests.t.expect.sent.a: it has sent 1 times, not 2",
    ),
    "no end": ({"answers": {"a": {"never": True}}}, {}, "the run does not end: it waits for a"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_named_with_its_place(name: str) -> None:
    case, expected, told = DIFFERENT[name]
    step = {**RUN, "retry": {"attempts": 2}, "output": "result.data"}
    found = of_case(flow({"a": step}, output="a.output"), **case, expect=expected)
    assert [each.partition(": ")[2] for each in found] == told.split("|") or told in found[0]
    assert all(each.startswith("line ") for each in found)


# A document, and what is told of it.
WRONG: dict[str, tuple[str, str]] = {
    "no tests": ("workflow: x", "line 1, column 1: tests: is missing"),
    "a field": (
        "workflow: x\ntests: {t: {inptu: {}}}",
        "line 2, column 13: tests.t.inptu: there is no field 'inptu': did you mean \"input\"?",
    ),
    "a status": (
        "workflow: x\ntests: {t: {expect: {status: done}}}",
        "line 2, column 30: tests.t.expect.status: must be 'completed', 'failed' or 'cancelled'",
    ),
    "an input": (
        "workflow: x\ntests: {t: {input: {q: 1}}}",
        "line 2, column 24: tests.t.input.q: must be string, not 1",
    ),
    "an unknown step": (
        "workflow: x\ntests: {t: {answers: {aks: x}}}",
        "line 2, column 28: tests.t.answers.aks: there is no step 'aks': did you mean \"ask\"?",
    ),
    "a field of an answer": (
        "workflow: x\ntests: {t: {answers: {ask: {decison: approve}}}}",
        "line 2, column 29: tests.t.answers.ask.decison: there is no field 'decison': did you mean",
    ),
    "a field of another kind": (
        "workflow: x\ntests: {t: {answers: {ask: {decision: approve, status: 200}}}}",
        "line 2, column 48: tests.t.answers.ask.status: the answer to a step with approve has no",
    ),
    "no decision": (
        "workflow: x\ntests: {t: {answers: {ask: {note: x}}}}",
        "line 2, column 28: tests.t.answers.ask: a decision is missing",
    ),
    "another decision": (
        "workflow: x\ntests: {t: {answers: {ask: yes}}}",
        "line 2, column 28: tests.t.answers.ask: must be 'approve', 'reject' or 'expire'",
    ),
    "an answer to nothing": (
        "workflow: x\ntests: {t: {answers: {set: x}}}",
        "line 2, column 28: tests.t.answers.set: the answer to a step with set does not exist",
    ),
    "an answer that does not fill in the form": (
        "workflow: x\ntests: {t: {answers: {form: approve}}}",
        "line 2, column 29: tests.t.answers.form.data: must be object, not null",
    ),
    "a field of the form": (
        "workflow: x\ntests: {t: {answers: {form: [{decision: approve, data: {n: x}}]}}}",
        "tests.t.answers.form.0.data.n: must be integer, not ",
    ),
    "no YAML": ("workflow: [", "the document is not YAML"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_a_document_is_named_with_its_place(name: str) -> None:
    document, told = WRONG[name]
    schema = {"properties": {"q": {"type": "string"}}}
    form = {"approve": {"title": '"ok?"', "form": FORM}}
    loaded = flow({"ask": ASK, "set": {"set": "1"}, "form": form}, input=schema)
    with pytest.raises(InvalidDefinition) as refused:
        differences(loaded, document)
    found = [str(each) for each in refused.value.problems]
    assert any(told in each for each in found), found
