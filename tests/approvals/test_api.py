"""`/v1/approvals` lists, shows and decides approvals, and refuses every kind of wrong request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, new_run_id, pipeline
from support.fakes.pauses import confirmation, end, pause, user_input
from support.real.nats import NatsServer

YES = {"items": [{"item_id": "t1", "decision": "approve"}]}


@pytest.fixture
async def penstock(nats: NatsServer) -> AsyncIterator[Pipeline]:
    async with pipeline(nats.url, Config(), (NormalizerService, ApprovalsService)) as made:
        yield made


def problem(answer: httpx.Response, status: int) -> str:
    """Check that the answer is problem details with this status; return the detail."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert body["type"] == "about:blank"
    return str(body["detail"])


async def test_a_request_is_shown_as_it_stands(penstock: Pipeline) -> None:
    approval = await pause(penstock, confirmation(path="/ü"))
    answer = await penstock.http.get(f"/v1/approvals/{approval.approval_id}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == approval.model_dump(exclude_none=True)
    assert answer.json()["items"][0]["args"] == {"path": "/ü"}


async def test_a_decision_answers_with_the_decided_request(penstock: Pipeline) -> None:
    approval = await pause(penstock)
    path = f"/v1/approvals/{approval.approval_id}"
    body = YES | {"by": "ada", "note": "ok", "digest": approval.digest}
    answer = await penstock.http.post(f"{path}/decision", json=body)
    assert answer.status_code == 200
    assert answer.json() == (await penstock.http.get(path)).json()
    assert answer.json()["status"] == "decided"
    decision = answer.json()["decision"]
    assert (decision["outcome"], decision["note"]) == ("approved", "ok")
    assert (decision["by"], decision["decider"]["on_behalf_of"]) == ("anonymous", "ada")
    later = await penstock.http.post(f"{path}/decision", json=YES)
    assert "decided already" in problem(later, 409)


async def test_the_list_is_filtered_and_newest_first(penstock: Pipeline) -> None:
    session = new_run_id()
    first = await pause(penstock, session_id=session)
    second = await pause(penstock, session_id=session, agent="b")
    third = await pause(penstock, session_id=session)
    await penstock.decide(second.approval_id)
    await end(penstock, third.run_id)
    await penstock.events_until(third.run_id, "approval.withdrawn")

    async def listed(**query: Any) -> list[str]:
        answer = await penstock.http.get("/v1/approvals", params={"session_id": session, **query})
        assert answer.status_code == 200
        return [approval["approval_id"] for approval in answer.json()["approvals"]]

    all_three = [third.approval_id, second.approval_id, first.approval_id]
    assert await listed() == all_three
    assert await listed(limit=2) == all_three[:2]
    assert await listed(status="pending") == [first.approval_id]
    assert await listed(status="decided") == [second.approval_id]
    assert await listed(status="withdrawn") == [third.approval_id]
    assert await listed(status="expired") == []
    assert await listed(agent="b") == [second.approval_id]
    assert await listed(run_id=first.run_id) == [first.approval_id]
    assert await listed(run_id=first.run_id, status="decided") == []
    assert await listed(tool=first.items[0]["tool"]) == all_three
    assert await listed(tool="other") == await listed(user_id="other") == []
    assert await listed(rule="default", user_id=first.user_id) == all_three
    asked_at = {"since": first.requested_at, "until": second.requested_at}
    assert await listed(**asked_at) == [first.approval_id]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=open", "status"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=many", "limit"),
        ("sattus=pending", "sattus"),
        ("since=yesterday", "since"),
        ("until=2026-01-31T12:00:00", "until"),
    ],
)
async def test_a_list_that_cannot_be_is_refused_by_field(
    penstock: Pipeline, query: str, field: str
) -> None:
    assert field in problem(await penstock.http.get(f"/v1/approvals?{query}"), 422)


@pytest.mark.parametrize(
    "approval_id",
    [
        "00000000-0000-4000-8000-000000000000",
        "no.such.key",
        "outbox.x",
        "*",
        "%3E",
        "---",
        "a%20b",
        "ü",
    ],
)
async def test_an_id_of_nothing_is_not_found(penstock: Pipeline, approval_id: str) -> None:
    path = f"/v1/approvals/{approval_id}"
    problem(await penstock.http.get(path), 404)
    problem(await penstock.http.post(f"{path}/decision", json=YES), 404)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "items"),
        ({"items": []}, "not decided: t1"),
        ({"items": [{"item_id": "t2", "decision": "approve"}]}, "no item t2"),
        ({"items": [{"item_id": "t1", "decision": "yes"}]}, "items.0.decision"),
        ({"items": [{"item_id": 1, "decision": "approve"}]}, "items.0.item_id"),
        ({"items": [{"decision": "approve"}]}, "items.0.item_id"),
        (YES | {"extra": 1}, "extra"),
        ({"items": [YES["items"][0] | {"args": "/etc"}]}, "items.0.args"),
        ({"items": [YES["items"][0] | {"args": {"path": 1}}]}, "args.path must stay a JSON string"),
        (YES, "digest: send the `digest` of the approval"),
        ({"items": YES["items"] * 2}, "t1 is decided 2 times"),
        ([], "body"),
    ],
)
async def test_a_decision_that_cannot_be_is_refused_by_field(
    penstock: Pipeline, body: Any, words: str
) -> None:
    approval = await pause(penstock)
    path = f"/v1/approvals/{approval.approval_id}"
    answer = await penstock.http.post(f"{path}/decision", json=body)
    assert words in problem(answer, 422)
    assert (await penstock.http.get(path)).json()["status"] == "pending"


async def test_a_value_that_does_not_fit_is_refused_with_its_place(penstock: Pipeline) -> None:
    approval = await pause(penstock, user_input())
    path = f"/v1/approvals/{approval.approval_id}/decision"
    item = {"item_id": "t1", "decision": "approve"}
    for value, words in (
        (None, "needs a value"),
        ({"to": "ada@example.org", "copies": "two"}, "copies"),
        ({"to": "ada@example.org"}, "copies"),
    ):
        answer = await penstock.http.post(path, json={"items": [item | {"value": value}]})
        assert words in problem(answer, 422)
    fits = {"to": "ada@example.org", "copies": 2}
    body = {"items": [item | {"value": fits}], "digest": approval.digest}
    answer = await penstock.http.post(path, json=body)
    assert answer.status_code == 200


async def test_another_digest_is_a_conflict(penstock: Pipeline) -> None:
    approval = await pause(penstock)
    path = f"/v1/approvals/{approval.approval_id}/decision"
    answer = await penstock.http.post(path, json=YES | {"digest": "sha256:0"})
    assert "digest" in problem(answer, 409)
    answer = await penstock.http.post(path, json=YES | {"digest": approval.digest})
    assert answer.status_code == 200


async def test_bodies_that_are_no_json_are_refused(penstock: Pipeline) -> None:
    approval = await pause(penstock)
    path = f"/v1/approvals/{approval.approval_id}/decision"

    async def post(content: bytes, media_type: str = "application/json") -> httpx.Response:
        return await penstock.http.post(path, content=content, headers={"content-type": media_type})

    problem(await post(b"a=b", "application/x-www-form-urlencoded"), 415)
    problem(await post(b"{"), 422)
    problem(await post(b"\xff"), 422)
    problem(await post(b""), 422)
    problem(await post(b'"' + b"x" * 11 * 1024 * 1024 + b'"'), 413)
    assert (await penstock.approval(approval.approval_id)).status == "pending"


async def test_other_methods_and_paths_are_refused_in_the_same_shape(penstock: Pipeline) -> None:
    problem(await penstock.http.delete("/v1/approvals"), 405)
    problem(await penstock.http.get("/v1/approvals/x/decision"), 405)
    problem(await penstock.http.get("/v1/approvals/x/y/z"), 404)


async def test_the_list_of_what_waits_for_the_caller_has_only_what_it_may_decide(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), (NormalizerService, ApprovalsService)) as penstock:
        approval = await pause(penstock)
        query = {"waits_for": "me", "run_id": approval.run_id}
        before = (await penstock.http.get("/v1/approvals", params=query)).json()
        one = (await penstock.http.get("/v1/approvals/count", params=query)).json()
        await penstock.decide(approval.approval_id)
        after = (await penstock.http.get("/v1/approvals", params=query)).json()
        none = (await penstock.http.get("/v1/approvals/count", params=query)).json()
        paged = await penstock.http.get("/v1/approvals/count?limit=1")
        wrong = await penstock.http.get("/v1/approvals?waits_for=you")
    assert [each["approval_id"] for each in before["approvals"]] == [approval.approval_id]
    assert after["approvals"] == []
    assert one == {"count": 1, "complete": True}
    assert none == {"count": 0, "complete": True}
    assert wrong.status_code == paged.status_code == 422


async def test_more_approvals_than_are_counted_are_said_to_be_more(
    penstock: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_approvals.api.approvals.MAX_COUNTED", 2)
    session = new_run_id()
    for _ in range(3):
        await pause(penstock, session_id=session)
    counted = await penstock.http.get("/v1/approvals/count", params={"session_id": session})
    assert counted.json() == {"count": 2, "complete": False}


@pytest.mark.parametrize(
    ("client", "channel"), [({}, "api"), ({"penstock-client": "console"}, "page")]
)
async def test_a_decision_of_the_console_is_known_as_one_without_a_sign_in(
    penstock: Pipeline, client: dict[str, str], channel: str
) -> None:
    approval = await pause(penstock)
    path = f"/v1/approvals/{approval.approval_id}/decision"
    body = YES | {"digest": approval.digest}
    answer = await penstock.http.post(path, json=body, headers=client)
    assert answer.json()["decision"]["decider"]["channel"] == channel
