"""All mistakes of rules are named at once, each with its field, and their conditions and templates
read fields that their events have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from penstock.events import CATALOGUE
from penstock.settings import AgnoAgent, Config
from penstock_automations.guard import Guard
from penstock_automations.rules.check import InvalidRule, read_rule
from penstock_automations.rules.draft import Draft
from penstock_automations.rules.fields import TRIGGERS, unknown_field
from penstock_automations.rules.model import Rule
from penstock_automations.triggers.firing import body_of_firing
from penstock_automations.triggers.hook_request import body_of_request
from penstock_cli.main import app
from support.drive.repository import ROOT
from support.fakes.receiver import SECRET

URL = "https://hook.example/x"

# Each line with a mistake ends in a comment with a part of what is said about the line.
PLANTED = """\
rules:
  - id: First Rule                               # use up to 63 of a to z
    subjects:
      - lifecycle.complete                       # did you mean "lifecycle.completed"?
      - llm.*
      - tools                                    # there are no events 'tools'
    wher: event.sequence > 1                     # did you mean "where"?
    payload: everything                          # must be 'full', 'reference' or 'a2a'
    action:
      webhook:
        url: ftp://hook.example                  # the URL must begin with https://
        secrets:
          - geheim                               # a secret begins with whsec_
          - whsec_AAAA                           # 24 to 64 bytes
        timeout_s: 0                             # greater than or equal to 1
        auth: {bearer: x, basic: {username: u}}  # they are the same|password: is missing
  - id: second
    subjects: [llm.tool_call]
    where: event.data.tol == "x"                 # did you mean "tool"?
    loops: maybe                                 # must be true or false
    action:
      run:
        agent: a b                               # should match pattern
        message: "{{ event.data.agrs }}"         # did you mean "args"?
        input:
          one: "{{ event + 1 }}"                 # a placeholder has a path only
          two: ["{{ evnt.x }}"]                  # there is no variable 'evnt'
  - id: second                                   # used twice
    schedule:
      cron: 0 25 * * *                           # Bad hour
      timezone: Rome                             # no time zone 'Rome'
    where: evnt.sequence > 1                     # undeclared reference to 'evnt.sequence'
    order: run                                   # only events of runs have an order
    name: ${NOT_SET}                             # the variable NOT_SET is not set
    action: {decide: {decision: maybe}}          # must be 'approve' or 'reject'
"""


def test_check_names_each_of_many_mistakes_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(PLANTED)
    checked = CliRunner().invoke(app, ["automations", "check", str(file)])
    assert checked.exit_code == 2
    said = checked.stderr.splitlines()
    planted = [
        (number, wanted)
        for number, line in enumerate(PLANTED.splitlines(), 1)
        for wanted in line.partition("# ")[2].split("|")
        if wanted
    ]
    assert len(planted) >= 20
    for number, wanted in planted:
        found = [each for each in said if each.startswith(f"{file}:{number}:")]
        assert any(wanted in each for each in found), (number, wanted, found)
    assert len(said) == len(planted), said
    assert "geheim" not in checked.output


def test_check_has_nothing_to_say_about_good_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        f"rules:\n  - id: a\n    subjects: [llm.*]\n    action: {{webhook: {{url: {URL}}}}}\n"
    )
    checked = CliRunner().invoke(app, ["automations", "check", str(file)])
    assert (checked.exit_code, checked.stderr) == (0, "")
    assert checked.stdout == f"{file}: 1 rules, no mistake\n"


def problems(rule: dict[str, Any], draft: Draft | None = None) -> dict[str, str]:
    with pytest.raises(InvalidRule) as refused:
        read_rule(rule, Rule, draft)
    return {each["field"]: each["reason"] for each in refused.value.problems}


def test_what_only_the_installation_knows_is_named_with_the_other_mistakes() -> None:
    agents = [AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")]
    draft = Draft(Config(agents=agents), Guard())
    run = {"agent": "asistant", "message": "", "input": {"a": "{{"}}
    found = problems({"id": "x", "subjects": ["llm.*"], "action": {"run": run}}, draft)
    assert list(found) == ["action.run.agent", "action.run.message", "action.run.input.a"]
    assert 'did you mean "assistant"?' in found["action.run.agent"]
    webhook = {"url": "https://10.0.0.1/", "concurrency": 0}
    found = problems({"id": "x", "subjects": ["llm.*"], "action": {"webhook": webhook}}, draft)
    assert "not public" in found["action.webhook.url"]
    assert "action.webhook.concurrency" in found


def condition(where: str, *subjects: str, **trigger: Any) -> dict[str, Any]:
    fields = trigger or {"subjects": list(subjects) or ["llm.tool_call"]}
    webhook = {"url": URL, "secrets": [SECRET]}
    return {"id": "x", **fields, "where": where, "action": {"webhook": webhook}}


HOOK: dict[str, Any] = {"hook": {}}
TIMED: dict[str, Any] = {"schedule": {"cron": "0 8 * * *"}}


@pytest.mark.parametrize(
    ("rule", "reason", "column"),
    [
        (condition('event.data.tol == "x"'), "llm.tool_call has no event.data.tol: did you me", 11),
        (condition('event.dat.tool == "x"'), 'no event.dat: did you mean "data"?', 10),
        (condition("event.squence > 1"), 'no event.squence: did you mean "sequence"?', 6),
        (condition("event.source.agent == 'x'"), "no event.source.agent: did you mean", 13),
        (
            condition("event.data.items.exists(i, i.tol == 'x')", "approval.requested"),
            'no event.data.items[].tol: did you mean "tool"?',
            29,
        ),
        (condition("event.data.items[0].tol == 'x'", "approval.requested"), "items[].tol", 20),
        (
            condition("event.data.tol == 'x'", "llm.*"),
            "the rule's events have no event.data.tol",
            11,
        ),
        (condition("event.run_id == 'x'", **HOOK), "hook.received has no event.run_id", 6),
        (condition("event.data.zone == 'x'", **TIMED), "schedule.fired has no event.data.zone", 11),
    ],
)
def test_a_condition_on_a_field_that_no_event_has_is_refused(
    rule: dict[str, Any], reason: str, column: int
) -> None:
    with pytest.raises(InvalidRule) as refused:
        read_rule(rule, Rule)
    [problem] = refused.value.problems
    assert reason in problem["reason"]
    assert (problem["field"], problem["line"], problem["column"]) == ("where", 1, column)


@pytest.mark.parametrize(
    "rule",
    [
        condition("event.data.args.tol == 'x'"),  # any field may be in the arguments
        condition("event.data['tol'] == 'x'"),
        condition("event.type == 'x' && event.event.action == 'y'"),
        condition("event.data.tool == 'x'", "llm.*"),  # one of the types has the field
        condition("event.data.value.x == 1", "custom.event"),
        condition("event.data.items.all(i, i.args.amount < 50.0)", "approval.requested"),
        condition("event.data.order.lines.exists(l, l.sku == 'a')", **HOOK),
        condition("event.id == 'x' && event.timestamp != ''", **HOOK),
        condition("event.data.timezone == 'UTC'", **TIMED),
    ],
)
def test_a_condition_on_fields_that_an_event_may_have_is_accepted(rule: dict[str, Any]) -> None:
    draft = Draft()
    read_rule(rule, Rule, draft)
    assert draft.warnings == []


def test_an_unknown_field_whose_presence_is_tested_is_a_warning() -> None:
    draft = Draft()
    rule = condition("has(event.data.tol) && event.data.tol == 'x'")
    read_rule(rule, Rule, draft)
    assert {each["field"] for each in draft.warnings} == {"where"}
    assert 'did you mean "tool"?' in draft.warnings[0]["reason"]


def test_a_template_that_reads_a_field_which_no_event_has_is_refused() -> None:
    run = {"agent": "a", "message": "{{ event.data.summry }}", "input": {"x": "{{ event.dat }}"}}
    found = problems({"id": "x", "subjects": ["lifecycle.completed"], "action": {"run": run}})
    assert list(found) == ["action.run.message", "action.run.input.x"]
    assert 'did you mean "summary"?' in found["action.run.message"]


def test_a_rule_with_thousands_of_unknown_fields_is_refused_at_once() -> None:
    texts = [f"{{{{event.data.to{number}}}}}" for number in range(4000)]
    webhook = {"url": URL, "body": texts}
    began = time.process_time()
    found = problems({"id": "x", "subjects": ["llm.*"], "action": {"webhook": webhook}})
    assert time.process_time() - began < 1.0, "meanwhile, the process does nothing else"
    assert "at most 16384 bytes" in found["action.webhook.body"]


def test_a_stored_rule_with_an_unknown_field_can_still_be_read() -> None:
    rule = condition('event.data.tol == "x"')
    assert Rule.model_validate(rule).where == rule["where"]


def test_triggers_have_the_fields_that_conditions_are_checked_for() -> None:
    times = Rule.model_validate(condition("true", **TIMED)).schedule
    assert times is not None
    fired = body_of_firing(times.times, 0.0)
    assert TRIGGERS["schedule.fired"].model_validate(fired).model_dump() == fired
    received = body_of_request({"a": 1}, "id", "2026-01-31T12:00:00Z", "push")
    assert TRIGGERS["hook.received"].model_validate(received).model_dump() == received


def test_no_event_of_a_recorded_run_has_a_field_that_the_check_refuses() -> None:
    looked_at = 0
    for golden in (ROOT / "tests" / "golden").rglob("*.golden.jsonl"):
        for line in golden.read_bytes().split(b"\n"):
            draft = orjson.loads(line) if line.startswith(b"{") else None
            if not isinstance(draft, dict) or draft.get("type") not in CATALOGUE:
                continue
            looked_at += 1
            for name in draft["data"]:
                assert unknown_field(("event", "data", name), [draft["type"]]) is None, golden
    assert looked_at > 500
