"""The actions of rules are checked when a rule is written, without I/O."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.settings import AgnoAgent, Config
from penstock_automations.rules.check import InvalidRule, missing_right, read_rule
from penstock_automations.rules.draft import Draft
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner

WEBHOOK = {"url": "https://hook.example/x"}
RUN = {"agent": "assistant", "message": "Hi {{ event.type }}"}
DECIDE = {"decision": "approve"}


@pytest.mark.parametrize(
    ("action", "subjects", "field", "reason"),
    [
        ({"run": RUN, "decide": DECIDE}, "approval.requested", "action", "exactly one"),
        ({"run": {**RUN, "agent": "a b"}}, "llm.*", "action.run.agent", "pattern"),
        ({"run": {**RUN, "message": ""}}, "llm.*", "action.run.message", "at least 1"),
        (
            {"run": {**RUN, "message": "a {{ evnt.x }}"}},
            "llm.*",
            "action.run.message",
            "no variable 'evnt'",
        ),
        (
            {"run": {**RUN, "session_id": "{{ event.x"}},
            "llm.*",
            "action.run.session_id",
            "ends with }}",
        ),
        (
            {"run": {**RUN, "input": {"a": ["x", "{{ event + 1 }}"]}}},
            "llm.*",
            "action.run.input.a.1",
            "a placeholder has a path only",
        ),
        (
            {"run": {**RUN, "input": {"a": "x" * 20_000}}},
            "llm.*",
            "action.run.input",
            "16384 bytes",
        ),
        ({"run": {**RUN, "input": {"a": {1: 2}}}}, "llm.*", "action.run.input", "not JSON"),
        ({"run": {**RUN, "input": {"a": ["x"] * 101}}}, "llm.*", "action.run.input", "100 texts"),
        ({"decide": DECIDE}, "approval.*", "action", "the one subject approval.requested"),
        ({"decide": DECIDE}, "lifecycle.paused", "action", "the one subject approval.requested"),
        (
            {"decide": {"decision": "yes"}},
            "approval.requested",
            "action.decide.decision",
            "'approve' or 'reject'",
        ),
        (
            {"decide": {**DECIDE, "note": "{{ x }}"}},
            "approval.requested",
            "action.decide.note",
            "no variable 'x'",
        ),
    ],
)
def test_a_wrong_action_is_refused_with_field_and_reason(
    action: dict[str, Any], subjects: str, field: str, reason: str
) -> None:
    with pytest.raises(InvalidRule) as refused:
        read_rule({"id": "x", "subjects": [subjects], "action": action}, Rule)
    [problem] = refused.value.problems
    assert problem["field"] == field
    assert reason in problem["reason"]


def test_a_template_that_cannot_be_compiled_has_a_position() -> None:
    action = {"run": {**RUN, "message": "a\n {{ evnt.x }}"}}
    with pytest.raises(InvalidRule) as refused:
        read_rule({"id": "x", "subjects": ["llm.*"], "action": action}, Rule)
    [problem] = refused.value.problems
    assert (problem["line"], problem["column"]) == (2, 5)
    assert not problem["reason"].startswith("line")


def test_a_rule_with_a_schedule_cannot_decide() -> None:
    rule = {"id": "x", "schedule": {"cron": "0 8 * * *"}, "action": {"decide": DECIDE}}
    with pytest.raises(InvalidRule, match="the one subject"):
        read_rule(rule, Rule)


@pytest.mark.parametrize(
    ("action", "owner", "reason"),
    [
        ({"run": RUN}, Owner(user_id="u", scopes=["start"]), None),
        ({"run": RUN}, Owner(user_id="u", scopes=["decide", "act-as"]), "the scope start"),
        ({"run": RUN}, Owner(user_id="", scopes=["start"]), "needs an owner"),
        ({"decide": DECIDE}, Owner(user_id="u", scopes=["decide"]), None),
        ({"decide": DECIDE}, Owner(user_id="u", scopes=["start"]), "the scope decide"),
        ({"decide": DECIDE}, Owner(user_id="", scopes=["decide"]), None),
        ({"webhook": WEBHOOK}, Owner(user_id="u"), None),
    ],
)
def test_an_action_needs_a_right_of_the_owner(
    action: dict[str, Any], owner: Owner, reason: str | None
) -> None:
    rule = read_rule({"id": "x", "subjects": ["approval.requested"], "action": action}, Rule)
    found = missing_right(rule.action, owner)
    assert found == reason or (reason is not None and reason in str(found))


CONFIG = Config(
    agents=[AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")]
)


@pytest.mark.parametrize(
    ("run", "field", "reason"),
    [
        (RUN, None, ""),
        ({**RUN, "agent": "asistant"}, "action.run.agent", "assistant"),
        ({**RUN, "agent": "review"}, "action.run.agent", "protocol: workflow"),
        ({**RUN, "input": {"model": "x"}}, "action.run.input", "model"),
        ({**RUN, "input": {"model": "{{ event.data.tool }}"}}, None, ""),
    ],
)
def test_an_action_needs_an_agent_of_the_configuration(
    run: dict[str, Any], field: str | None, reason: str
) -> None:
    rule = {"id": "x", "subjects": ["llm.tool_call"], "action": {"run": run}}
    if field is None:
        read_rule(rule, Rule, Draft(CONFIG))
        return
    with pytest.raises(InvalidRule) as refused:
        read_rule(rule, Rule, Draft(CONFIG))
    [problem] = refused.value.problems
    assert problem["field"] == field
    assert reason in problem["reason"]
