"""Who may see and decide an approval, by every route and by the policy that the record keeps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from penstock.bus.records.approvals import Deciders
from penstock_cli.main import app
from penstock_cli.terminal.watch import described
from support.drive.access import AGUI
from support.drive.secured import Secured, bearer, secured
from support.drive.short import in_short
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The policies that records keep: the default, and one that asks finance except the requester.
OWN = [Deciders(users=["requester"])]
FOUR_EYES = [Deciders(roles=["finance"], excluded=["requester"])]
ITEM = {"item_id": "c1", "kind": "confirmation", "tool": "transfer", "args": {"amount": 5}}
YES = {"items": [{"item_id": "c1", "decision": "approve"}], "digest": "d"}

SCOPES = "start read raw decide"
Headers = Callable[[Secured], Awaitable[dict[str, str]]]


def _jwt(user: str, scope: str = SCOPES, **claims: Any) -> Headers:
    async def headers(_: Secured) -> dict[str, str]:
        return bearer(user, scope=scope, **claims)

    return headers


def _machine(**rights: Any) -> Headers:
    async def headers(penstock: Secured) -> dict[str, str]:
        return (await penstock.service_token(**rights))[0]

    return headers


CALLERS: dict[str, Headers] = {
    "the requester": _jwt("alice"),
    "an approver by role": _jwt("grace", roles=["finance"]),
    "an approver without decide": _jwt("grace", "start read raw", roles=["finance"]),
    "a stranger": _jwt("bob", roles=["sales"]),
    "an administrator": _jwt("root", f"{SCOPES} administer"),
    "one who acts for others": _jwt("agent", f"{SCOPES} act-as"),
    "a service token with the role": _machine(roles=["finance"]),
    "a service token for other tools": _machine(roles=["finance"], tools=["get_*"]),
    "a service token for the tool": _machine(roles=["finance"], tools=["trans*"]),
    "a service token without the role": _machine(),
    "a service token that may act for the requester": _machine(on_behalf_of=["alice"]),
}
SURFACES = ("agui", "adk", "agno")


@dataclass(frozen=True)
class Right:
    """The statuses that a caller gets for seeing, deciding and answering on a surface."""

    see: int
    decide: int
    surface: int  # 200 means that the decision is taken


NONE = Right(404, 404, 404)
MATRIX: list[tuple[str, list[Deciders], Right]] = [
    ("the requester", OWN, Right(200, 200, 200)),
    ("an approver by role", OWN, NONE),
    ("an approver without decide", OWN, Right(404, 403, 403)),
    ("a stranger", OWN, NONE),
    ("an administrator", OWN, Right(200, 200, 200)),
    ("one who acts for others", OWN, Right(200, 200, 200)),
    ("a service token with the role", OWN, NONE),
    ("a service token that may act for the requester", OWN, Right(200, 403, 404)),
    ("the requester", FOUR_EYES, Right(200, 403, 403)),
    ("an approver by role", FOUR_EYES, Right(200, 200, 404)),
    ("an approver without decide", FOUR_EYES, Right(404, 403, 403)),
    ("a stranger", FOUR_EYES, NONE),
    ("an administrator", FOUR_EYES, Right(200, 403, 403)),
    ("one who acts for others", FOUR_EYES, Right(200, 403, 403)),
    ("a service token with the role", FOUR_EYES, Right(200, 200, 404)),
    ("a service token for other tools", FOUR_EYES, NONE),
    ("a service token for the tool", FOUR_EYES, Right(200, 200, 404)),
    ("a service token without the role", FOUR_EYES, NONE),
    ("a service token that may act for the requester", FOUR_EYES, Right(200, 403, 404)),
]


@pytest.fixture(scope="module")
def nats_of_people(tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = NatsServer(tmp_path_factory.mktemp("people"), name="nats of people")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats_of_people: NatsServer) -> AsyncIterator[Secured]:
    async with secured(nats_of_people.url) as running:
        yield running


async def pause(penstock: Secured, deciders: list[Deciders]) -> tuple[PretendRun, str]:
    """Make a run of Alice's that waits for an approval with this policy."""
    run = await penstock.live()
    terms = [each.model_dump() for each in deciders]
    approval_id = await penstock.approval(run, items=[ITEM], deciders=terms)
    await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)
    return run, approval_id


@pytest.mark.parametrize(("caller", "deciders", "right"), MATRIX)
async def test_who_sees_an_approval(
    penstock: Secured, caller: str, deciders: list[Deciders], right: Right
) -> None:
    run, approval_id = await pause(penstock, deciders)
    headers = await CALLERS[caller](penstock)
    path = f"/v1/approvals/{approval_id}"
    shown = await penstock.http.get(path, headers=headers)
    assert shown.status_code == right.see, shown.text
    if right.see == 200:
        assert shown.json()["items"][0]["args"] == {"amount": 5}
    else:
        missing = await penstock.http.get(path[:-4] + "0000", headers=headers)
        assert missing.status_code == 404
        assert shown.text.replace(approval_id, "x") == missing.text.replace(
            approval_id[:-4] + "0000", "x"
        )
    audit = await penstock.http.get(f"{path}/audit", headers=headers)
    assert audit.status_code == right.see
    # A person who may see an approval may not always see its run.
    own = {"the requester", "an administrator", "one who acts for others"}
    for below in ("", "/events?dialect=canonical"):
        of_run = await penstock.http.get(
            f"/v1/runs/{run.run_id}{below}",
            headers={**headers, "accept": "application/json"},
        )
        assert of_run.status_code == (200 if caller in own else 404)
    await penstock.stands(approval_id)


@pytest.mark.parametrize(("caller", "deciders", "right"), MATRIX)
async def test_who_finds_an_approval_in_the_list_and_among_the_live_changes(
    penstock: Secured, caller: str, deciders: list[Deciders], right: Right
) -> None:
    headers = await CALLERS[caller](penstock)
    accepts = {**headers, "accept": "application/json"}
    url = "/v1/approvals/events"
    before = await penstock.http.get(url, headers=accepts)
    run, approval_id = await pause(penstock, deciders)
    changes = await penstock.http.get(f"{url}?after={before.json()['next']}", headers=accepts)
    listed, waiting = [
        await penstock.http.get(f"/v1/approvals?run_id={run.run_id}{more}", headers=headers)
        for more in ("", "&waits_for=me")
    ]
    sees = right.see == 200
    assert [each["approval"]["approval_id"] for each in changes.json()["changes"]] == (
        [approval_id] * sees
    )
    assert [each["approval_id"] for each in listed.json()["approvals"]] == [approval_id] * sees
    # A service token decides for the requester if it says so in `by`, which `YES` does not.
    may = right.decide == 200 or ("act for the requester" in caller and deciders == OWN)
    assert [each["approval_id"] for each in waiting.json()["approvals"]] == [approval_id] * may
    # The stream: its first change after the cursor is of this approval, or there is none.
    stream = penstock.http.stream("GET", f"{url}?after={before.json()['next']}", headers=headers)
    async with stream as answer:
        text = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5 if sees else 0.3):
                async for chunk in answer.aiter_text():
                    text += chunk
                    if approval_id in text:
                        break
    assert text.startswith("event: ready\n")
    assert (approval_id in text) is sees


@pytest.mark.parametrize(
    "body", [YES, {"approved": True, "digest": "d"}], ids=["items", "short form"]
)
@pytest.mark.parametrize(("caller", "deciders", "right"), MATRIX)
async def test_who_decides_an_approval(
    penstock: Secured, caller: str, deciders: list[Deciders], right: Right, body: dict[str, Any]
) -> None:
    _, approval_id = await pause(penstock, deciders)
    headers = await CALLERS[caller](penstock)
    path = f"/v1/approvals/{approval_id}/decision"
    answer = await penstock.http.post(path, json=body, headers=headers)
    assert answer.status_code == right.decide, answer.text
    if right.decide == 200:
        assert answer.json()["status"] == "decided"
    else:
        await penstock.stands(approval_id)


def _to_adk(run: PretendRun, approval_id: str) -> tuple[str, dict[str, Any]]:
    response = {
        "id": f"{approval_id}/c1",
        "name": "adk_request_confirmation",
        "response": {"confirmed": True},
    }
    return "/run_sse", {
        "appName": "assistant",
        "userId": "{user}",
        "sessionId": run.session_id,
        "newMessage": {"role": "user", "parts": [{"functionResponse": response}]},
    }


def _to_agno(run: PretendRun, _: str) -> tuple[str, dict[str, Any]]:
    path = f"/agents/assistant/runs/{run.run_id}/continue"
    return path, {"tools": [{"tool_call_id": "c1", "confirmed": True}]}


def _to_agui(run: PretendRun, approval_id: str) -> tuple[str, dict[str, Any]]:
    answer = {"interruptId": f"{approval_id}/c1", "status": "resolved", "payload": True}
    return "/agui/assistant", AGUI | {"threadId": run.session_id, "resume": [answer]}


# `make test` lets all callers decide over one surface, and every fourth over each.
OVER_SURFACES = [(*row, each) for row in MATRIX for each in (_to_adk, _to_agno, _to_agui)]
SHORT = [row for row in OVER_SURFACES if row[-1] is _to_agui]
SHORT += [(*row, each) for row in MATRIX[::4] for each in (_to_adk, _to_agno)]


@pytest.mark.parametrize(("caller", "deciders", "right", "surface"), in_short(OVER_SURFACES, SHORT))
async def test_who_decides_over_the_surfaces_of_runs(
    penstock: Secured,
    caller: str,
    deciders: list[Deciders],
    right: Right,
    surface: Callable[[PretendRun, str], tuple[str, dict[str, Any]]],
) -> None:
    """These surfaces respond with the run's next leg, so they serve only people who see the run."""
    run, approval_id = await pause(penstock, deciders)
    headers = await CALLERS[caller](penstock)
    path, body = surface(run, approval_id)
    if "userId" in body:
        users = {"one who acts for others": "alice", "an administrator": "root"}
        users |= {"the requester": "alice", "a stranger": "bob"}
        machine = "service-token:machine" if "service token" in caller else "grace"
        body["userId"] = users.get(caller, machine)
    sending = asyncio.create_task(penstock.http.post(path, json=body, headers=headers, timeout=10))
    if right.surface == 200:
        await penstock.decision(approval_id)
        await run.completed("done")  # so that the stream of the answer ends
    answer = await sending
    # The scope is checked before or after the run is read.
    lacks_scope = caller == "an approver without decide"
    assert answer.status_code in ({403, 404} if lacks_scope else {right.surface}), answer.text
    if right.surface != 200:
        await penstock.stands(approval_id)


async def test_a_question_its_answer_and_a_handover_are_for_those_whom_the_policy_names(
    penstock: Secured,
) -> None:
    """Bob, who may neither see nor decide it, is there all the time."""
    run, approval_id = await pause(penstock, FOUR_EYES)
    grace, alice, bob = [
        bearer(name, scope=SCOPES, roles=[role])
        for name, role in (("grace", "finance"), ("alice", "finance"), ("bob", "sales"))
    ]
    path = f"/v1/approvals/{approval_id}"

    async def says(who: dict[str, str], kind: str, text: str | None = None, **more: str) -> int:
        body = {"kind": kind, "text": text, **more}
        return (await penstock.http.post(f"{path}/remarks", json=body, headers=who)).status_code

    async def waits_for(who: dict[str, str]) -> bool:
        query = f"run_id={run.run_id}&waits_for=me"
        listed = await penstock.http.get(f"/v1/approvals?{query}", headers=who)
        return bool(listed.json()["approvals"])

    assert [await says(who, "question", "Which?") for who in (alice, bob)] == [403, 404]
    assert await says(alice, "answer", "17") == 409
    assert await says(grace, "question", "Which?") == 200
    assert [await says(who, "answer", "17") for who in (grace, bob, alice)] == [403, 404, 200]
    assert await waits_for(grace)
    assert [await says(grace, "handover", to=name) for name in ("alice", "bob")] == [422, 200]
    assert not await waits_for(grace)
    assert [await waits_for(who) for who in (alice, bob)] == [False, False]
    assert (await penstock.http.get(path, headers=bob)).status_code == 404
    decided = await penstock.http.post(f"{path}/decision", json=YES, headers=bob)
    assert decided.status_code == 404, "a handover gives no right"
    audit = (await penstock.http.get(f"{path}/audit", headers=alice)).json()
    assert [(each.get("decision"), each["by"]) for each in audit["records"]] == [
        *((None, "alice"), ("question", "grace"), ("answer", "alice"), ("handover", "grace"))
    ]
    assert audit["intact"]
    wrong = ("question", "x" * 2001), ("question", None), ("handover", "no name")
    assert [await says(grace, *each) for each in wrong] == [422] * 3
    assert await says(grace, "question", "why", to="bob") == 422
    await penstock.stands(approval_id)


async def test_the_terminal_asks_answers_takes_back_and_hands_over(penstock: Secured) -> None:
    run = await penstock.live()
    terms = [each.model_dump() for each in FOUR_EYES]
    approval_id = await penstock.approval(run, items=[ITEM], deciders=terms, need=2)

    async def types(who: str, *words: str) -> str:
        roles = ["finance"]
        variables = {"PENSTOCK_TOKEN": bearer(who, scope=SCOPES, roles=roles)["authorization"][7:]}
        command = ["approvals", words[0], approval_id, *words[1:], "--url", penstock.url]
        run = partial(CliRunner().invoke, app, command, env=variables)
        return (await asyncio.to_thread(run)).output

    assert "your question is recorded; 0 of 2 have approved" in await types("grace", "ask", "Why?")
    assert "your answer is recorded" in await types("alice", "answer", "Rent.")
    assert "1 of 2" in await types("grace", "approve")
    assert "no vote of yours" in await types("lee", "take-back")
    assert "your vote is taken back; 0 of 2" in await types("grace", "take-back")
    assert "your handover is recorded" in await types("grace", "hand-over", "lee", "--note", "sick")
    assert "answer of alice: Rent." in "".join(
        text
        for text, _ in described(
            (
                await penstock.http.get(
                    f"/v1/approvals/{approval_id}", headers=bearer("alice", scope=SCOPES)
                )
            ).json(),
            datetime.now(UTC),
        )
    )


async def test_a_service_token_decides_for_a_person_and_the_record_names_both(
    penstock: Secured,
) -> None:
    headers, token_id = await penstock.service_token(on_behalf_of=["alice"])
    _, approval_id = await pause(penstock, OWN)
    path = f"/v1/approvals/{approval_id}/decision"
    refused = await penstock.http.post(path, json=YES | {"by": "bob"}, headers=headers)
    assert refused.status_code == 403
    answer = await penstock.http.post(path, json=YES | {"by": "alice"}, headers=headers)
    assert answer.status_code == 200, answer.text
    decision = answer.json()["decision"]
    assert decision["decider"]["name"] == "service-token:machine"
    assert decision["decider"]["on_behalf_of"] == "alice"
    assert decision["decider"]["token_id"] == token_id


@pytest.mark.parametrize(
    ("body", "outcome", "note"),
    [
        ({"approved": True}, "approved", None),
        ({"approved": False, "comment": "too much"}, "rejected", "too much"),
        ({"approved": True, "note": "fine"}, "approved", "fine"),
    ],
)
async def test_the_short_form_decides_all_confirmations(
    penstock: Secured, body: dict[str, Any], outcome: str, note: str | None
) -> None:
    run = await penstock.live()
    items = [ITEM, ITEM | {"item_id": "c2", "kind": "review"}]
    approval_id = await penstock.approval(run, items=items)
    path = f"/v1/approvals/{approval_id}/decision"
    answer = await penstock.http.post(path, json=body | {"digest": "d"}, headers=bearer())
    assert answer.status_code == 200, answer.text
    decision = answer.json()["decision"]
    assert (decision["outcome"], decision.get("note")) == (outcome, note)
    assert [each["item_id"] for each in decision["items"]] == ["c1", "c2"]


_FORMS = (
    'send either items: [{"item_id": "…", "decision": "approve"}], or approved: true for all items'
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, f"body: {_FORMS}"),
        ({"decision": "approve"}, f"body: a decision belongs to an item: {_FORMS}"),
        (YES | {"approved": True}, f"body: {_FORMS}"),
        (YES | {"comment": "x"}, "comment goes with approved"),
        ({"approved": True, "comment": "x", "note": "y"}, "either comment or note"),
        ({"approved": "yes"}, "approved"),
        ({"approved": True}, "item c2 (input)"),
    ],
)
async def test_a_short_form_that_cannot_be_is_refused(
    penstock: Secured, body: dict[str, Any], words: str
) -> None:
    run = await penstock.live()
    items = [ITEM, {"item_id": "c2", "kind": "input"}]
    approval_id = await penstock.approval(run, items=items)
    path = f"/v1/approvals/{approval_id}/decision"
    answer: httpx.Response = await penstock.http.post(path, json=body, headers=bearer())
    assert answer.status_code == 422, answer.text
    assert words in answer.json()["detail"]
    await penstock.stands(approval_id)
