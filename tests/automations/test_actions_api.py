"""Rules that start runs or decide are made over HTTP only by those who may do so themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock.bus import messages
from support.drive.automations_api import ADMIN, AutomationsApi, automations_api, caller
from support.drive.secured import bearer
from support.real.nats import NatsServer

RUN = {"run": {"agent": "assistant", "message": "Hi {{ event.run_id }}"}}
DECIDE = {"decide": {"decision": "approve"}}
BARE = bearer("alice", scope="read automate")


def rule(action: dict[str, Any], *subjects: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "acts",
        "subjects": list(subjects) or ["approval.requested"],
        "action": action,
        **fields,
    }


@pytest_asyncio.fixture
async def api(nats_server: NatsServer) -> AsyncIterator[AutomationsApi]:
    async with automations_api(nats_server.url) as running:
        yield running
        await running.ask("DELETE", "/acts", ADMIN)


@pytest.mark.parametrize(("action", "scope"), [(RUN, "start"), (DECIDE, "decide")])
async def test_an_action_needs_the_callers_right_to_do_it(
    api: AutomationsApi, action: dict[str, Any], scope: str
) -> None:
    refused = await api.ask("POST", "", BARE, rule(action))
    assert refused.status_code == 403
    assert f"needs the scope {scope}" in refused.json()["detail"]
    assert (await api.ask("GET", "/acts")).status_code == 404
    made = await api.ask("POST", "", caller(), rule(action))
    assert made.status_code == 201
    assert (await api.ask("GET", "/acts")).json()["action"] == made.json()["action"]
    assert "new_secrets" not in made.json()


async def test_a_rule_cannot_be_changed_into_more_than_its_author_may(
    api: AutomationsApi,
) -> None:
    made = (await api.ask("POST", "", caller(), api.rule("acts"))).json()
    patch = {"action": {"webhook": None, **RUN}}
    refused = await api.ask("PATCH", "/acts", BARE, patch)
    assert refused.status_code == 403
    assert (await api.ask("GET", "/acts")).json()["version"] == made["version"]
    changed = await api.ask("PATCH", "/acts", caller(), patch)
    assert changed.status_code == 200, changed.text
    assert changed.json()["action"] == RUN


async def test_an_administrator_lends_no_right_to_another_users_rule(api: AutomationsApi) -> None:
    body = api.rule("acts")
    assert (await api.ask("POST", "", BARE, body)).status_code == 201
    root = caller("root", "administer", "act-as")
    refused = await api.ask("PATCH", "/acts", root, {"action": {"webhook": None, **RUN}})
    assert refused.status_code == 403
    assert "start, which the owner lacks" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("action", "subjects", "field", "reason"),
    [
        ({"run": {**RUN["run"], "agent": "asistant"}}, (), "action.run.agent", "assistant"),
        ({"run": {**RUN["run"], "input": {"model": "x"}}}, (), "action.run.input", "model"),
        ({"run": {**RUN["run"], "message": "x\n{{ y }}"}}, (), "action.run.message", "variable"),
        (DECIDE, ("lifecycle.paused",), "action", "the one subject approval.requested"),
        ({**RUN, **DECIDE}, (), "action", "exactly one action"),
    ],
)
async def test_a_wrong_action_is_refused_with_its_field_and_nothing_changes(
    api: AutomationsApi, action: dict[str, Any], subjects: tuple[str, ...], field: str, reason: str
) -> None:
    refused = await api.ask("POST", "", None, rule(action, *subjects))
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["field"] == field
    assert reason in error["message"]
    if field.endswith("message"):
        assert (error["line"], error["column"]) == (2, 4)
    assert (await api.ask("GET", "/acts")).status_code == 404


async def test_what_is_about_webhooks_is_refused_for_other_actions(api: AutomationsApi) -> None:
    await api.ask("POST", "", None, rule(RUN, "lifecycle.completed"))
    assert (await api.ask("POST", "/acts/secrets", None, {})).status_code == 409
    assert (await api.ask("POST", "/acts/test", None, {})).status_code == 409
    tried = await api.ask("POST", "/acts/dry-run", None, {"since": messages.now()})
    assert tried.status_code == 200
