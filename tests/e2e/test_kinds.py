"""Every kind of pause of the real agent servers: asked, decided, audited, and carried out.

docs/approvals.md has the same table. What an upstream's protocol has no answer for is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.bus.read import direct
from penstock.bus.records import ApprovalRecord
from penstock.settings import Config
from penstock_approvals.audit.trail import Audit
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.drive.waiting import eventually
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SECRET = "oauth-code-7f3b"
EMAIL = {"subject": "Hi", "body": "Body", "to_address": "x@example.org"}
AUTH = {"authType": "oauth2", "exchangedAuthCredential": {"oauth2": {"authCode": SECRET}}}
# agent, message, kinds of the items, the value for each item, whether it can be rejected
KINDS: list[tuple[str, str, list[str], Any, bool]] = [
    ("agno", "confirm Kinds", ["confirmation"], None, True),
    ("agno", "confirm2", ["confirmation", "confirmation"], None, True),
    ("agno", "userinput", ["input"], EMAIL, False),
    ("agno", "getinput", ["input"], {"city": "Rome"}, False),
    ("agno", "external", ["external"], "a.txt", True),
    ("agno", "feedback", ["feedback"], {"Which city?": ["Rome"]}, False),
    ("agno-team", "teamconfirm", ["confirmation"], None, True),
    ("agno-team", "delegateconfirm", ["confirmation"], None, True),
    ("agno-workflow", "text", ["confirmation"], None, True),
    ("agno-input", "text", ["input"], {"who": "Ada"}, False),
    ("adk", "confirm", ["confirmation"], None, True),
    ("adk", "dynconfirm", ["confirmation"], {"approved_amount": 5}, True),
    ("adk", "bigconfirm", ["confirmation", "confirmation"], None, True),
    ("adk", "ask", ["input"], "blue", False),
    ("adk", "needauth", ["credential"], AUTH, False),
    ("adk-resumable", "confirm", ["confirmation"], None, True),
    ("adk-resumable", "ask", ["input"], "blue", False),
    ("adk-resumable", "needauth", ["credential"], AUTH, False),
    ("adk-workflow", "x", ["input"], {"approved": True}, False),
    ("adk-team", "confirm", ["confirmation"], None, True),
    ("adk-sequence", "x", ["confirmation"], None, True),
    ("adk-sequence-resumable", "x", ["confirmation"], None, True),
]
IDS = [f"{agent} {message.split()[0]}" for agent, message, *_ in KINDS]


def config(agno: Upstream, adk: Upstream) -> Config:
    of_agno = {"protocol": "agno", "url": agno.url}
    of_adk = {"protocol": "adk", "url": adk.url}
    workflow = {**of_agno, "kind": "workflow"}
    apps = {
        "adk": "demo",
        "adk-resumable": "resumable",
        "adk-workflow": "wfhitl",
        "adk-team": "teamconfirm",
        "adk-sequence": "seqconfirm",
        "adk-sequence-resumable": "seqconfirm_r",
    }
    agents = [
        {"id": "agno", "agent": "demo-agent", **of_agno},
        {"id": "agno-team", "agent": "demo-team", "kind": "team", **of_agno},
        {"id": "agno-workflow", "agent": "hitl-wf", **workflow},
        {"id": "agno-input", "agent": "input-wf", **workflow},
        *({"id": name, "agent": app, **of_adk} for name, app in apps.items()),
    ]
    return Config.model_validate({"agents": agents})


@pytest.fixture(scope="module")
async def penstock(
    nats_server: NatsServer, agno_server: Upstream, adk_server: Upstream
) -> AsyncIterator[Pipeline]:
    made = config(agno_server, adk_server)
    async with pipeline(nats_server.url, made, PIPELINE, audit_details=True) as penstock:
        yield penstock


async def paused(penstock: Pipeline, agent: str, message: str) -> ApprovalRecord:
    run_id = await penstock.start_run(agent, message)
    *_, event = await penstock.events_until(run_id, "lifecycle.paused", 30)
    return await penstock.approval(event.data["approval_id"])


async def audited(penstock: Pipeline, run_id: str, *expected: str) -> bytes:
    """Wait until the run's chain begins with these events; return all of its bytes."""
    trail = Audit(penstock.bus)

    async def complete() -> bool:
        return len(await trail.chain(run_id)) >= len(expected)

    await eventually(complete, what=f"the audit has {expected}")
    chain = await trail.chain(run_id)
    assert [each.record["event"] for each in chain][: len(expected)] == list(expected)
    return b"".join(each.payload for each in chain)


@pytest.mark.parametrize(("agent", "message", "kinds", "value", "rejects"), KINDS, ids=IDS)
async def test_a_kind_is_asked_approved_and_carried_out(
    penstock: Pipeline, agent: str, message: str, kinds: list[str], value: Any, rejects: bool
) -> None:
    approval = await paused(penstock, agent, message)
    assert [item["kind"] for item in approval.items] == kinds
    values = {item["item_id"]: value for item in approval.items if value is not None}
    reply = await penstock.decide(approval.approval_id, values=values)
    assert reply.status == 200, reply.detail
    events = await penstock.ended(approval.run_id, 30)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    await audited(penstock, approval.run_id, "requested", "decided", "sent")


@pytest.mark.parametrize(("agent", "message", "kinds", "value", "rejects"), KINDS, ids=IDS)
async def test_a_kind_is_rejected_where_its_protocol_can(
    penstock: Pipeline, agent: str, message: str, kinds: list[str], value: Any, rejects: bool
) -> None:
    approval = await paused(penstock, agent, message)
    reply = await penstock.decide(approval.approval_id, "reject")
    assert reply.status == (200 if rejects else 422), reply.detail
    if not rejects:
        await penstock.cancel(approval.run_id)
    *_, last = await penstock.ended(approval.run_id, 30)
    expected = "decided" if rejects else "withdrawn"
    assert last.type in {"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"}
    await audited(penstock, approval.run_id, "requested", expected)


@pytest.mark.parametrize("agent", ["adk", "adk-resumable"])
async def test_a_credential_is_sent_and_shown_nowhere(
    penstock: Pipeline, adk_server: Upstream, caplog: pytest.LogCaptureFixture, agent: str
) -> None:
    caplog.set_level(logging.DEBUG)
    approval = await paused(penstock, agent, "needauth")
    path = f"/v1/approvals/{approval.approval_id}"
    body = {
        "items": [{"item_id": approval.items[0]["item_id"], "decision": "approve", "value": AUTH}],
        "digest": approval.digest,
    }
    after = await penstock.http.get("/v1/approvals/events", headers={"accept": "application/json"})
    decided = await penstock.http.post(f"{path}/decision", json=body)
    assert decided.status_code == 200, decided.text
    events = await penstock.ended(approval.run_id, 30)
    assert "authorized" in json.dumps([event.data for event in events])  # the server has got it
    audit = await audited(penstock, approval.run_id, "requested", "decided", "sent")
    cursor = after.json()["next"]
    accept = {"accept": "application/json"}
    shown = {
        "the answer": decided.text,
        "the record": (await penstock.http.get(path)).text,
        "the list": (await penstock.http.get("/v1/approvals?limit=1000")).text,
        "the live changes": (
            await penstock.http.get(f"/v1/approvals/events?after={cursor}", headers=accept)
        ).text,
        "the audit": audit.decode(),
        "the audit over HTTP": (await penstock.http.get(f"{path}/audit")).text,
        "the events": json.dumps([event.body for event in events]),
        "the log": caplog.text,
    }
    assert [name for name, text in shown.items() if SECRET in text] == []
    approvals = [each async for each in direct.replay(penstock.bus, "RAW", "rawp.*.*.approvals")]
    assert not any(SECRET.encode() in each.payload for each in approvals)
