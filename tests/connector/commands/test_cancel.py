"""A cancel at any time: the run ends once, and the upstream gets no unnecessary calls."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.bus import Retry, Stored, streams, subjects
from penstock.bus.records.runs import CancelCommand
from penstock.settings import AdkAgent, Config
from penstock_connector.commands.handlers import Commands
from penstock_connector.service import ConnectorService
from penstock_connector.settings import ConnectorSettings
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import TERMINAL, Event, Pipeline, pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import (
    Answer,
    Misbehaving,
    Request,
    Script,
    agents,
    cuts,
    plays,
    stalls,
)
from support.fakes.raw import agno, agno_pause, agno_text
from support.real.connectors import FAST, claimed_by_the_dead, connector_process
from support.real.nats import NatsServer

STARTED = agno("RunStarted")


def cancels(upstream: Misbehaving) -> list[Request]:
    return [request for request in upstream.requests if request.path.endswith("/cancel")]


async def until_cancelled(upstream: Misbehaving) -> None:
    async def probe() -> bool:
        return bool(cancels(upstream))

    await eventually(probe, what="a cancel at the upstream")


async def the_end(penstock: Pipeline, run_id: str) -> Event:
    """Return the terminal event; check that it is the only one and that the run's record agrees."""
    events = await penstock.ended(run_id)

    async def settled() -> bool:
        record = await penstock.record(run_id)
        return f"lifecycle.{record.status}" == events[-1].type

    await eventually(settled, what="the run's record")
    again = await penstock.ended(run_id)
    assert [event.type for event in again if event.type in TERMINAL] == [events[-1].type]
    return events[-1]


# The fields of a run that is a step of a workflow's run.
CHILD: dict[str, Any] = {
    "parent_run_id": "01a1f8c3-1007-77dc-be51-6f2ae3b9b92e",
    "step_id": "step_lint",
    "workflow_depth": 1,
}


async def test_a_run_cancelled_before_its_start_never_reaches_the_upstream(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        command = await penstock.register("agno", "hello", **CHILD)
        await penstock.cancel(command.run_id, by="ada")
        end = await the_end(penstock, command.run_id)
        await penstock.command("start", command)
        other = await penstock.start_run("agno", "other")
        await penstock.ended(other)
    assert end.data == {"reason": "user_stop", "by": "ada", "confirmed": True}
    assert end.body.items() >= CHILD.items()
    assert [call.form["run_id"] for call in upstream.calls] == [other]


async def test_a_run_that_a_dead_connector_had_claimed_can_be_cancelled(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async with pipeline(nats_server.url, agents(upstream), **FAST) as penstock:
        command = await penstock.register("agno", "hello")
        await claimed_by_the_dead(penstock.bus, command.run_id)
        await penstock.cancel(command.run_id)
        end = await the_end(penstock, command.run_id)
        await penstock.command("start", command)
    assert end.type == "lifecycle.cancelled"
    assert not upstream.calls


async def test_a_queued_run_is_cancelled_at_once_and_the_running_one_continues(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    go = asyncio.Event()

    async def waits(answer: Answer) -> None:
        await answer.head()
        await go.wait()
        await answer.send(agno_text("x"))
        await answer.end()

    upstream.script(waits)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        first = await penstock.start_run("agno", "one", session_id="s-queue")
        await upstream.called()
        second = await penstock.start_run("agno", "two", session_id="s-queue")
        third = await penstock.start_run("agno", "three", session_id="s-queue")
        await penstock.events_until(second, "lifecycle.started")
        await penstock.cancel(second)
        assert (await the_end(penstock, second)).data["confirmed"] is True
        go.set()
        assert (await the_end(penstock, first)).type == "lifecycle.completed"
        assert (await the_end(penstock, third)).type == "lifecycle.completed"
    assert [call.form["run_id"] for call in upstream.calls] == [first, third]
    assert not cancels(upstream)


async def test_agno_is_asked_and_its_stream_ends_the_run(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def obeys(answer: Answer) -> None:
        await answer.head()
        await answer.send(STARTED)
        await until_cancelled(upstream)
        # Agno 3.1 also sends RunCompleted after RunCancelled. This event does not count.
        await answer.send(agno("RunCancelled", reason="stop") + agno("RunCompleted"))
        await answer.end()

    upstream.script(obeys)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await upstream.called()
        await penstock.cancel(run_id)
        end = await the_end(penstock, run_id)
    assert end.type == "lifecycle.cancelled"
    assert [request.path for request in cancels(upstream)] == [f"/agents/agno/runs/{run_id}/cancel"]


async def test_an_agno_server_that_ends_without_a_word_when_it_is_asked_has_cancelled(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def answers(answer: Answer) -> None:
        await answer.head()
        await until_cancelled(upstream)
        await answer.raw(b"d\r\n: keepalive\n\n\r\n")
        await answer.end()

    upstream.script(answers)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await upstream.called()
        await penstock.cancel(run_id, by="ada")
        end = await the_end(penstock, run_id)
    assert end.type == "lifecycle.cancelled"
    assert end.data == {"reason": "user_stop", "by": "ada", "confirmed": True}


async def test_an_agno_server_that_does_not_obey_is_hung_up_on(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(STARTED, stalls))
    async with pipeline(nats_server.url, agents(upstream), cancel_grace_s=0.3) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await upstream.called()
        await penstock.cancel(run_id)
        end = await the_end(penstock, run_id)
        await upstream.dropped()
    assert end.type == "lifecycle.cancelled"
    assert end.data["confirmed"] is False


async def refuses_with_500(answer: Answer) -> None:
    """Agno 2.3 answers a cancel so if it does not know the run or if the run is over."""
    await answer.whole(b'{"detail":"Failed to cancel run"}', 500)


async def has_no_cancel(answer: Answer) -> None:
    await answer.whole(b'{"detail":"Not Found"}', 404)


@pytest.mark.parametrize("on_cancel", [cuts, stalls, has_no_cancel, refuses_with_500])
@pytest.mark.parametrize("last", [STARTED, b""], ids=["answers", "is silent"])
async def test_a_cancel_that_the_agent_server_did_not_accept_is_not_confirmed(
    on_cancel: Script, last: bytes, nats_server: NatsServer, upstream: Misbehaving
) -> None:
    """The agent works on in each case: only the connector has closed the connection."""

    async def works_on(answer: Answer) -> None:
        if answer.request.path.endswith("/cancel"):
            await on_cancel(answer)
        else:
            await answer.head()
            await answer.send(last or b": nothing yet\n\n")
            await stalls(answer)

    upstream.script(works_on)
    upstream.scripted = lambda request: request.method == "POST"
    async with pipeline(nats_server.url, agents(upstream), cancel_grace_s=0.3) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await upstream.called()
        await penstock.cancel(run_id, by="ada")
        end = await the_end(penstock, run_id)
        await upstream.dropped()
    assert end.type == "lifecycle.cancelled"
    assert end.data == {"reason": "user_stop", "by": "ada", "confirmed": False}
    assert len(cancels(upstream)) == 1


async def test_a_stream_that_ends_although_the_cancel_was_refused_does_not_confirm_it(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def ends(answer: Answer) -> None:
        if answer.request.path.endswith("/cancel"):
            await refuses_with_500(answer)
        else:
            await answer.head()
            await until_cancelled(upstream)
            await answer.end()

    upstream.script(ends)
    upstream.scripted = lambda request: request.method == "POST"
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await upstream.called()
        await penstock.cancel(run_id)
        end = await the_end(penstock, run_id)
    assert end.data["confirmed"] is False


async def test_closing_the_connection_to_another_penstock_does_not_confirm_a_cancel(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    """The runs of a Penstock go on without their clients."""

    async def penstock_edge(answer: Answer) -> None:
        await answer.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"penstock-run-id: the-run-there\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await answer.send(b'data: {"type":"CUSTOM","name":"x","value":1}\n\n')
        await stalls(answer)

    upstream.script(penstock_edge)
    upstream.scripted = lambda request: True
    bridged = {"id": "bridged", "protocol": "agui", "url": f"{upstream.url}/agui/agno"}
    async with pipeline(nats_server.url, Config.model_validate({"agents": [bridged]})) as penstock:
        run_id = await penstock.start_run("bridged", "hello")
        await penstock.events_until(run_id, "custom.event")
        await penstock.cancel(run_id)
        end = await the_end(penstock, run_id)
    assert end.type == "lifecycle.cancelled"
    assert end.data["confirmed"] is False


async def test_a_timeout_cancels_the_upstream_and_is_told_as_a_timeout(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(STARTED, stalls))
    async with pipeline(nats_server.url, agents(upstream, timeout_s=0.5)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        end = await the_end(penstock, run_id)
        await upstream.dropped()
    assert end.data["code"] == "timeout"
    assert len(cancels(upstream)) == 1


async def test_the_limit_is_for_the_whole_answer_and_not_for_its_silence(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def talks(answer: Answer) -> None:
        await answer.head()
        await answer.send(STARTED)
        while True:
            await answer.send(agno("RunContent", content="and "))
            await asyncio.sleep(0.02)

    upstream.script(talks)
    async with pipeline(nats_server.url, agents(upstream, timeout_s=0.5)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        end = await the_end(penstock, run_id)
        await upstream.dropped()
    assert end.data["code"] == "timeout"
    assert end.data["error"] == "Request timeout after 0.5 seconds"


def test_the_limit_is_300_s_unless_the_configuration_says_another() -> None:
    assert AdkAgent(id="a", protocol="adk", url="http://127.0.0.1:9").timeout_s == 300


async def test_adk_is_cancelled_by_closing_its_connection(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(b'data: {"id":"e1","author":"a"}\n\n', stalls))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("adk", "hello")
        await upstream.called()
        await penstock.cancel(run_id, by="ada")
        end = await the_end(penstock, run_id)
        await upstream.dropped()
    assert end.data == {"reason": "user_stop", "by": "ada", "confirmed": True}


async def test_a_run_is_cancelled_while_the_upstream_has_not_answered(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(stalls)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("adk", "hello")
        await upstream.called()
        await penstock.cancel(run_id)
        end = await the_end(penstock, run_id)
        await upstream.dropped()
    assert end.type == "lifecycle.cancelled"


async def test_a_paused_run_is_cancelled_and_its_request_withdrawn(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "delete")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.cancel(run_id)
        assert (await the_end(penstock, run_id)).type == "lifecycle.cancelled"
        events = await penstock.events_until(run_id, "approval.withdrawn")
        reply = await penstock.decide(paused.data["approval_id"])
    assert [event.type for event in events[-2:]] == ["lifecycle.cancelled", "approval.withdrawn"]
    assert reply.status == 409
    assert "withdrawn" in reply.detail
    assert len(upstream.calls) == 1


async def test_a_cancel_that_meets_a_pause_is_not_lost(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def pauses_when_cancelled(answer: Answer) -> None:
        await answer.head()
        await until_cancelled(upstream)
        await answer.send(agno_pause())
        await answer.end()

    upstream.script(pauses_when_cancelled)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "delete")
        await upstream.called()
        await penstock.cancel(run_id)
        end = await the_end(penstock, run_id)
    assert end.type == "lifecycle.cancelled"


async def test_a_cancel_after_the_end_changes_nothing(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await the_end(penstock, run_id)
        before = await penstock.raw(run_id)
        await penstock.cancel(run_id)
        later = await penstock.register("agno", "later")
        await penstock.cancel(later.run_id)
        await penstock.ended(later.run_id)
        assert (await the_end(penstock, run_id)).type == "lifecycle.completed"
        assert await penstock.raw(run_id) == before


async def test_a_cancel_of_a_run_that_has_ended_and_lost_its_frames_is_done(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    """The test deletes the run's frames from RAW, as if NATS came back with an older RAW.

    So no frame shows that the run's leg was ever open.
    """
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        await the_end(penstock, run_id)
        lost = {"filter": subjects.raw_of_run(run_id)}
        await penstock.bus.api(f"STREAM.PURGE.{streams.RAW}", lost)
        await penstock.cancel(run_id, by="ada")

        async def done() -> bool:
            subject = subjects.command("connector", "cancel", run_id)
            return await penstock.bus.tail(streams.COMMANDS, subject) is None

        await eventually(done, what="that no connector has the cancel any more")
        assert (await penstock.record(run_id)).status == "completed"


async def test_two_cancels_are_one(nats_server: NatsServer, upstream: Misbehaving) -> None:
    upstream.script(plays(STARTED, stalls))
    async with pipeline(nats_server.url, agents(upstream), cancel_grace_s=0.2) as penstock:
        run_id = await penstock.start_run("adk", "hello")
        await upstream.called()
        await penstock.cancel(run_id)
        await penstock.cancel(run_id)
        end = await the_end(penstock, run_id)
    assert end.type == "lifecycle.cancelled"


async def test_a_run_of_a_dead_connector_can_be_cancelled(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(STARTED, stalls))
    config = agents(upstream)
    async with pipeline(nats_server.url, config, (NormalizerService,)) as penstock:
        async with connector_process(penstock.bus, config, tmp_path) as connector:
            run_id = await penstock.start_run("agno", "hello")
            await upstream.called()
            await penstock.events_until(run_id, "custom.event")
            await connector.kill()
        await eventually(lambda: nobody_lives(penstock), what="that the dead one counts as dead")
        async with httpx.AsyncClient() as client:
            # No connector in this test looks for ended connectors: the cancel itself finds their
            # legs.
            commands = Commands(penstock.bus, config, ConnectorSettings(), client, "connector-x-1")
            cancel = CancelCommand(run_id=run_id, by="ada")
            with pytest.raises(Retry):  # the command stays until the leg has ended
                await commands.cancel(Stored("", 1, {}, cancel.dump()))
            end = await the_end(penstock, run_id)
            await commands.cancel(Stored("", 1, {}, cancel.dump()))
    assert end.type == "lifecycle.cancelled"
    assert end.data == {"reason": "user_stop", "by": "ada", "confirmed": False}
    assert len(cancels(upstream)) == 1


async def nobody_lives(penstock: Pipeline) -> bool:
    return not await penstock.bus.bucket("leases").keys("pod.>")


async def test_runs_cancelled_at_any_moment_end_once(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    """Every second cancel is of a budget: the leg notes it while the answer is still stored."""

    async def chatters(answer: Answer) -> None:
        await answer.head()
        while True:
            await answer.send(b'data: {"id":"e","author":"a","partial":true}\n\n')
            await asyncio.sleep(0.001)

    upstream.script(chatters)
    moments, budget = random.Random(7), {"id": "b"}

    async def one(penstock: Pipeline, budget: dict[str, Any] | None) -> tuple[str, Any, bool]:
        run_id = await penstock.start_run("adk", "hello")
        await asyncio.sleep(moments.random() * 0.08)
        await penstock.cancel(run_id, budget=budget)
        end = await the_end(penstock, run_id)

        async def let_go() -> bool:
            held = await penstock.bus.bucket("claims").keys("active.>")
            return not any(run_id in key for key in held)

        let = await eventually(let_go, what="that nobody holds the run")
        return end.type, end.data.get("budget"), let

    async with pipeline(
        nats_server.url, agents(upstream), (NormalizerService, ConnectorService, ConnectorService)
    ) as penstock:
        ends = await asyncio.gather(*(one(penstock, each) for each in (None, budget) * 15))
    assert ends == [("lifecycle.cancelled", each, True) for each in (None, budget) * 15]
