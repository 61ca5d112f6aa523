"""Nobody gets content of an erased run, whatever client he uses and whatever an edge remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from penstock.bus import Bus, streams, subjects
from penstock.bus.admin import subscribers
from penstock.bus.admin.subscribers import Durable
from penstock.bus.records.erasures import EraseCommand
from penstock.bus.records.runs import RunRecord
from penstock.bus.state.bucket_index import BucketIndex
from penstock.settings import AdkAgent, AuthSettings, Config
from penstock.web.auth import Auth, AuthConfig
from penstock_cli.main import app
from penstock_edge.views.dialects import DIALECTS, RAW_DIALECT
from penstock_normalizer.erasing.eraser import Eraser
from support.drive.clients import Client, MakeEdge, Stream
from support.drive.erasing import erased, record_of
from support.drive.normalizing import normalizer
from support.drive.secured import bearer
from support.drive.waiting import eventually
from support.fakes.adk_server import AdkSessionsServer
from support.fakes.issuer import SECRET
from support.fakes.pretend import PretendApprovals, PretendRun
from support.real.nats import NatsServer

PAGE = {"accept": "application/json"}
# Where clients get content of a run, a session or a task.
PLACES = (
    "/v1/runs/{run}",
    "/v1/runs/{run}/state",
    "/v1/runs/{run}/fork",
    "/v1/runs?session_id={session}",
    "/v1/runs/{run}/state?at=3",
    "/sessions?type=agent&user_id=anonymous",
    "/sessions/{session}?type=agent&user_id=anonymous",
    "/sessions/{session}/run-previews?user_id=anonymous",
    "/sessions/{session}/runs?user_id=anonymous",
    "/sessions/{session}/runs/{run}?user_id=anonymous",
    "/apps/assistant/users/anonymous/sessions/{session}",
    "/a2a/assistant/tasks/{run}",
    "/openai/v1/responses/resp_{run}",
    "/vercel/assistant/{session}/stream",
    "/api/v1/agent/runs/{session}/history",
)


@pytest.fixture(scope="module", autouse=True)
async def erasing(nats_server: NatsServer) -> AsyncIterator[None]:
    """Run a normalizer, which erases."""
    async with normalizer(nats_server.url):
        yield


async def ended(bus: Bus, secret: str, **fields: Any) -> PretendRun:
    """Make a run of a session of its own that has ended, and that has said the secret."""
    run = PretendRun(bus, session_id=f"s-{uuid4().hex}")
    await run.join(status="running", message=secret, **fields)
    await run.started()
    await run.say("llm.message_started", message_id="m1", role="assistant")
    await run.text(secret, " and more")
    await run.say("llm.message_completed", message_id="m1", role="assistant", content=secret)
    await run.completed(secret)
    record = {"first_event": run.first, "sequence": run.sequence, "legs": 1, "summary": secret}
    await run.record(**{"status": "completed", "message": secret, **record, **fields})
    return run


async def erase(edge: Client, run: PretendRun, **headers: str) -> dict[str, Any]:
    """Erase the run's content; return the report."""
    path = f"/v1/runs/{run.run_id}/content"
    answer = await edge.delete(path, params={"reason": "asked"}, headers=headers)
    assert answer.status_code == 202, answer.text
    report: dict[str, Any] = answer.json()
    return report


async def test_every_dialect_shows_an_erased_run_as_a_whole_run_without_its_content(
    edge: Client, bus: Bus
) -> None:
    secret = f"secret-{uuid4().hex}"
    run = await ended(bus, secret)
    url = f"/v1/runs/{run.run_id}/events"
    dialects = [each for each in DIALECTS if each != RAW_DIALECT]
    for dialect in dialects:  # so that the edge remembers the content
        before = await edge.get(url, params={"dialect": dialect})
        assert secret in before.text, dialect
    report = await erase(edge, run)
    assert report["state"] in ("erasing", "erased")
    for _ in range(2):  # while messages are deleted, and after that
        for dialect in dialects:
            answer = await edge.get(url, params={"dialect": dialect})
            assert answer.status_code == 200, dialect
            assert secret not in answer.text, dialect
            assert "erased" in answer.text, dialect
            page = await edge.get(url, params={"dialect": dialect}, headers=PAGE)
            assert secret not in page.text, dialect
            assert page.json()["next"] is None, dialect
        await erased(bus, run.run_id)
    assert (await edge.get(url, params={"dialect": RAW_DIALECT})).status_code == 410
    events = (await edge.get(url, headers=PAGE)).json()["events"]
    assert [each["event"]["action"] for each in events] == ["started", "erased", "completed"]


async def test_what_an_adk_server_itself_has_of_an_erased_session_is_not_relayed(
    make_edge: MakeEdge, bus: Bus
) -> None:
    secret, server = f"secret-{uuid4().hex}", AdkSessionsServer(old=False)
    await server.start()
    try:
        helper = AdkAgent(id="helper", protocol="adk", url=server.url, agent="vana")
        edge = await make_edge(config=Config(agents=[helper]))
        run = await ended(bus, secret, agent="helper")
        sessions = "/apps/vana/users/anonymous/sessions"
        own, other = f"{sessions}/{run.session_id}", f"{sessions}/other"
        for path in (own, other):
            created = await edge.post(path, json={"said": secret})
            assert created.status_code == 200, created.text
        await erase(edge, run)
        for path in (own, f"{own}/artifacts", f"{own}/artifacts/a.txt"):
            answer = await edge.get(path)
            assert answer.status_code == 410, path
            assert "delete the session" in answer.json()["detail"]
        changed = await edge.patch(own, json={"stateDelta": {"a": 1}})
        assert changed.status_code == 410
        states = {each["id"]: each["state"] for each in (await edge.get(sessions)).json()}
        assert states == {run.session_id: {}, "other": {"said": secret}}
        assert (await edge.get(other)).json()["state"] == {"said": secret}
        assert (await edge.delete(own)).status_code == 200
        await edge.post(own, json={"said": "anew"})
        assert (await edge.get(own)).json()["state"] == {"said": "anew"}
    finally:
        await server.stop()


async def test_no_face_shows_content_of_an_erased_run(edge: Client, bus: Bus) -> None:
    secret = f"secret-{uuid4().hex}"
    run = await ended(bus, secret)
    paths = [each.format(run=run.run_id, session=run.session_id) for each in PLACES]
    headers = {"a2a-version": "1.0"}
    before = [(await edge.get(path, headers=headers)).text for path in paths]
    # A fork's preview has no texts.
    assert [path for path, text in zip(paths, before, strict=True) if secret not in text] == [
        f"/v1/runs/{run.run_id}/fork"
    ]
    await erase(edge, run)
    for path in paths:
        answer = await edge.get(path, headers=headers)
        assert answer.status_code < 500, path
        assert secret not in answer.text, path
    preview = (await edge.get(f"/v1/runs/{run.run_id}/fork")).json()
    assert (preview["possible"], preview["reason"]) == (False, "the content of the run was erased")


async def test_streams_over_many_runs_forget_what_they_remember_of_an_erased_run(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"secret-{uuid4().hex}"
    run = await ended(bus, secret)
    since = (await bus.api(f"STREAM.INFO.{streams.EVENTS}"))["state"]["last_seq"] - 20
    session = f"/v1/sessions/{run.session_id}/events"
    paths = (f"{session}?after={run.first}-0", f"/v1/events?after={max(since, 1)}-0", session)
    async with Stream(edge, "GET", paths[0]) as open_one, Stream(edge, "GET", paths[1]) as other:
        await open_one.until(secret.encode())
        await other.until(secret.encode())
        # Nothing is deleted yet, so only what withholds the content can hide it.
        deleting, delete = asyncio.Event(), Eraser._delete

        async def slow(eraser: Eraser, run_id: str) -> None:
            await deleting.wait()
            await delete(eraser, run_id)

        monkeypatch.setattr("penstock_normalizer.erasing.eraser.Eraser._delete", slow)
        assert (await erase(edge, run))["state"] == "erasing"
        await open_one.until(b"system.erased")
        await other.until(b"system.erased")
        await forgotten(edge, secret, *paths)
        # After that, what an edge has in memory must not come back.
        deleting.set()
        await erased(bus, run.run_id)
        await edge.get("/v1/runs")  # with the newest records
        of_types = f"/v1/events?subjects=llm.*,system.*&after={max(since, 1)}-0"
        await forgotten(edge, secret, *paths, of_types)


async def forgotten(edge: Client, secret: str, *paths: str) -> None:
    """Check that new streams, and pages, have the notice of the erasure and not the secret."""
    for path in paths:
        async with Stream(edge, "GET", path) as stream:
            await stream.until(b"system.erased")
            assert secret.encode() not in stream.body, path
        assert secret not in (await edge.get(path, headers=PAGE)).text, path


async def test_an_edge_that_has_missed_an_erasure_shows_no_content_either(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_edge.edge.Edge.withhold", lambda *_: None)
    secret = f"secret-{uuid4().hex}"
    run = await ended(bus, secret)
    url = f"/v1/runs/{run.run_id}/events"
    assert secret in (await edge.get(url)).text
    await erase(edge, run)
    assert secret not in (await edge.get(url)).text


async def test_an_edge_that_starts_during_an_erasure_shows_no_content_before_it_knows_all_runs(
    make_edge: MakeEdge, edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"secret-{uuid4().hex}"
    run = await ended(bus, secret)
    deleting, delete = asyncio.Event(), Eraser._delete

    async def slow(eraser: Eraser, run_id: str) -> None:
        await deleting.wait()
        await delete(eraser, run_id)

    # The index of the edge that this module shares may catch up meanwhile, and must go on later.
    reading, catch_up = asyncio.Event(), BucketIndex._catch_up

    async def late(index: BucketIndex) -> None:
        await reading.wait()
        await catch_up(index)

    with monkeypatch.context() as patch:
        patch.setattr(Eraser, "_delete", slow)
        assert (await erase(edge, run))["state"] == "erasing"
        patch.setattr(BucketIndex, "_catch_up", late)
        fresh = await make_edge()
        since = f"after={run.first}-0"
        try:
            of_types, session = "/v1/events", f"/v1/sessions/{run.session_id}/events"
            await forgotten(fresh, secret, f"{of_types}?{since}", f"{session}?{since}")
        finally:
            deleting.set()
            reading.set()
    await erased(bus, run.run_id)


async def test_runs_that_no_normalizer_has_taken_are_requested_and_not_erased(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await ended(bus, "x")
    taking, withhold = asyncio.Event(), Eraser._withhold

    async def late(eraser: Eraser, run_id: str, command: EraseCommand) -> None:
        await taking.wait()
        await withhold(eraser, run_id, command)

    monkeypatch.setattr(Eraser, "_withhold", late)
    monkeypatch.setattr("penstock_edge.runs.erasing.WAIT_S", 0.2)
    monkeypatch.setattr("penstock_edge.surfaces.v1.erasures.WAIT_S", 0.2)
    told = (await edge.post("/v1/erasures", json={"session_id": run.session_id})).json()
    assert (told["erased"], told["requested"]) == ([], [run.run_id])
    assert (await erase(edge, run))["state"] == "requested"
    taking.set()
    await erased(bus, run.run_id)


async def test_who_may_erase_what_and_what_a_legal_hold_says(make_edge: MakeEdge, bus: Bus) -> None:
    edge = await make_edge(auth=Auth(AuthConfig(**AuthSettings(jwt_secret=SECRET).model_dump())))
    run, other = await ended(bus, "x", user_id="alice"), await ended(bus, "x", user_id="alice")
    live = PretendRun(bus)
    await live.record(user_id="alice", status="running")
    path = f"/v1/runs/{run.run_id}"
    alice, bob = bearer("alice", scope="read start erase"), bearer("bob", scope="read start erase")
    admin = bearer("lea", scope="read administer erase")
    for headers, status in (
        (bearer("alice"), 403),  # who may start may not erase
        (bob, 404),
        (admin, 403),  # sees the run, and may not act for its user
    ):
        answer = await edge.delete(f"{path}/content", headers=headers)
        assert answer.status_code == status, answer.text
    is_open = await edge.delete(f"/v1/runs/{live.run_id}/content", headers=alice)
    assert is_open.status_code == 409
    assert "cancel it first" in is_open.json()["detail"]

    alone = await edge.put(f"{path}/hold", json={"reason": "case 7"}, headers=admin)
    assert alone.status_code == 503  # nobody writes the audit; the hold holds
    approvals = PretendApprovals(bus)
    await approvals.start()
    held = await edge.put(f"{path}/hold", json={"reason": "case 8"}, headers=admin)
    assert held.json()["hold"]["by"] == "lea"
    assert (await edge.put(f"{path}/hold", json={}, headers=alice)).status_code == 403
    refused = await edge.delete(f"{path}/content", headers=alice)
    assert refused.status_code == 409
    assert "lea has put run" in refused.json()["detail"]
    assert "case 7" in refused.json()["detail"]
    for _ in range(2):  # the second one lifts nothing
        assert (await edge.delete(f"{path}/hold", headers=admin)).status_code == 200
    changes = [(each.change, each.by, each.reason) for each in approvals.holds]
    assert changes == [("hold_set", "lea", "case 7"), ("hold_lifted", "lea", "case 7")]
    assert (await edge.delete(f"{path}/content", headers=alice)).status_code == 202
    assert (await record_of(bus, run.run_id)).erasure is not None
    late = await edge.put(f"{path}/hold", json={}, headers=admin)
    assert late.status_code == 409

    behind = bearer("root", scope="read erase act-as")
    answer = await edge.delete(f"/v1/runs/{other.run_id}/content", headers=behind)
    assert answer.json()["erasure"]["by"] == "root"


async def test_a_run_of_a_step_goes_with_the_workflows_run_and_not_alone(
    edge: Client, bus: Bus
) -> None:
    root = await ended(bus, "x", target="workflows")
    below = {"parent_run_id": root.run_id, "ancestors": [root.run_id], "workflow_depth": 1}
    child = await ended(bus, "y", **below)
    alone = await edge.delete(f"/v1/runs/{child.run_id}/content")
    assert alone.status_code == 409
    assert root.run_id in alone.json()["detail"]
    report = await erase(edge, root)
    record = await erased(bus, child.run_id)
    assert record.erasure is not None
    assert record.erasure.id == report["erasure"]["id"]


async def test_the_report_names_no_grant_of_a_subscriber_that_read_the_run_in_clear(
    edge: Client, bus: Bus
) -> None:
    name = f"reporting-{uuid4().hex}"
    await subscribers.make(bus, Durable(name))
    try:
        report = await erase(edge, await ended(bus, "x"))
    finally:
        await subscribers.delete(bus, name)
    told = [each["detail"] for each in report["places"] if each["place"] == "subscriber"]
    assert name in told


async def test_all_runs_of_a_session_are_erased_and_those_that_cannot_be_are_named(
    edge: Client, bus: Bus
) -> None:
    first = await ended(bus, "x")
    second, live = (PretendRun(bus, session_id=first.session_id) for _ in range(2))
    await second.started()
    await second.completed()
    await second.record(status="completed", first_event=second.first, sequence=2)
    await live.record(status="running")
    kept = await ended(bus, "kept")
    answer = await edge.post("/v1/erasures", json={"session_id": first.session_id})
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert set(told["erased"]) == {first.run_id, second.run_id}
    assert [each["run_id"] for each in told["refused"]] == [live.run_id]
    assert told["next"] is None
    for run in (first, second):
        record = await erased(bus, run.run_id)
        assert record.erasure is not None
        assert record.erasure.id == told["erasure_id"]
    assert (await record_of(bus, kept.run_id)).erasure is None
    nothing = await edge.post("/v1/erasures", json={"reason": "x"})
    assert nothing.status_code == 422
    foreign = {"session_id": kept.session_id, "erasure_id": "€"}  # of no earlier answer
    assert (await edge.post("/v1/erasures", json=foreign)).status_code == 422
    assert (await record_of(bus, kept.run_id)).erasure is None


async def test_an_erasure_of_several_runs_is_shown_with_each_of_them_and_as_a_page_to_print(
    edge: Client, bus: Bus
) -> None:
    first = await ended(bus, "x")
    second = PretendRun(bus, session_id=first.session_id)
    await second.started()
    await second.completed()
    await second.record(status="completed", first_event=second.first, sequence=2)
    reason = "<asked> & done"
    asked = {"session_id": first.session_id, "reason": reason}
    told = await edge.post("/v1/erasures", json=asked)
    path = told.headers["location"]
    for run in (first, second):
        await erased(bus, run.run_id)
    shown = (await edge.get(path)).json()
    assert (shown["by"], shown["reason"], shown["next"]) == ("anonymous", reason, None)
    assert {each["run_id"]: each["state"] for each in shown["runs"]} == {
        first.run_id: "erased",
        second.run_id: "erased",
    }
    newest = (await edge.get(path, params={"limit": 1})).json()
    assert [each["run_id"] for each in newest["runs"]] == [second.run_id]
    rest = (await edge.get(path, params={"limit": 1, "before": newest["next"]})).json()
    assert ([each["run_id"] for each in rest["runs"]], rest["next"]) == ([first.run_id], None)
    assert (await edge.get("/v1/erasures/unknown")).status_code == 404
    for page in (path, f"/v1/runs/{first.run_id}/erasure"):
        printed = await edge.get(page, headers={"accept": "text/html,*/*"})
        assert printed.headers["content-type"] == "text/html; charset=utf-8"
        assert "&lt;asked&gt; &amp; done" in printed.text
        assert first.run_id in printed.text
        assert "<td>erased</td>" in printed.text
        assert (await edge.get(page, params={"format": "pdf"})).status_code == 422


async def test_costs_are_the_same_after_an_erasure(
    make_edge: MakeEdge, edge: Client, bus: Bus
) -> None:
    run = PretendRun(bus, session_id=f"s-{uuid4().hex}")
    await run.join(status="running")
    await run.started()
    cost = {"micros": 1500, "currency": "EUR"}
    used = {"input_tokens": 7, "output_tokens": 2, "reported": "call", "estimated": False}
    await run.say("llm.usage", model="m-1", cost=cost, **used)
    await run.completed("secret")
    await run.record(status="completed", first_event=run.first, sequence=run.sequence)
    asked = {"by": "model", "session_id": run.session_id}

    async def added_up() -> bool:
        return bool((await edge.get("/v1/costs", params=asked)).json()["costs"])

    await eventually(added_up, 30, "the run's costs")
    before = (await edge.get("/v1/costs", params=asked)).json()
    await erase(edge, run)
    await erased(bus, run.run_id)
    fresh = await make_edge()
    for each in (edge, fresh):
        assert (await each.get("/v1/costs", params=asked)).json() == before


async def test_the_terminal_says_what_became_of_each_run_and_that_none_fits(
    edge: Client, bus: Bus
) -> None:
    first, second, live = await ended(bus, "x"), await ended(bus, "y"), PretendRun(bus)
    await live.record(status="running")

    async def penstock(*words: str) -> tuple[int, str]:
        command = ["erase", *words, "--url", str(edge.base_url)]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
        return result.exit_code, result.output

    code, said = await penstock(first.run_id, live.run_id, "--reason", "asked")
    assert (code, f"{first.run_id}: eras" in said) == (1, True), said
    assert f"{live.run_id}: refused: " in said
    assert "cancel it first" in said
    code, said = await penstock("--session", second.session_id)
    assert (code, said) == (0, f"{second.run_id}: erasing\n")
    code, said = await penstock("--session", "of-nobody")
    assert (code, said.startswith("No run fits. Without --user")) == (0, True), said
    for run in (first, second):
        await erased(bus, run.run_id)


async def test_the_report_says_of_each_place_what_has_become_of_the_content(
    edge: Client, bus: Bus
) -> None:
    run = await ended(bus, "x")
    path = f"/v1/runs/{run.run_id}/erasure"
    assert (await edge.get(path)).status_code == 404
    await erase(edge, run)
    await erased(bus, run.run_id)
    report = (await edge.get(path)).json()
    assert report["state"] == "erased"
    assert report["erasure"]["reason"] == "asked"
    states = {each["place"]: each["state"] for each in report["places"]}
    assert {states[each] for each in ("EVENTS", "RAW", "JOURNAL", "DEADLETTERS")} == {"erased"}
    assert states["KV runs"] == "overwritten"
    assert (states["costs"], states["audit"]) == ("kept", "kept")
    assert (states["agent server"], states["backups"]) == ("out_of_reach", "out_of_reach")
    again = await erase(edge, run)  # a repeat erases nothing again
    assert again["erasure"]["id"] == report["erasure"]["id"]

    async def only_the_notice() -> bool:
        found = await bus.api(
            f"STREAM.INFO.{streams.EVENTS}",
            {"subjects_filter": subjects.events_of_run(run.run_id)},
        )
        return list(found["state"]["subjects"]) == [f"system.erased.{run.run_id}"]

    await eventually(only_the_notice, 10, "one event")
    record = await bus.bucket("runs").load(run.run_id, RunRecord)
    assert record is not None
    assert record.message == ""
