"""The watchdog repairs or ends a run that nothing else would move, and leaves all others."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock import telemetry
from penstock.bus import Loss, Message, RawWriter
from penstock.bus.messages import now
from penstock.bus.records.approvals import ApprovalRecord, Decided, Decision
from penstock.bus.records.runs import RunRecord
from penstock.bus.state.continuity import Continuity
from penstock.bus.subjects import command
from penstock_approvals.service import ApprovalsService
from penstock_connector.legs.runner import LegRunner
from penstock_connector.service import ConnectorService
from penstock_connector.state.leg_record import LegRecord
from penstock_connector.succession import reaper, watchdog
from penstock_normalizer.service import NormalizerService
from support.drive.bus import connected
from support.drive.pipeline import PIPELINE, Pipeline, Services, pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import Misbehaving, agents, plays, stalls
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.fakes.workflow_runs import WorkflowRun
from support.real.connectors import DEAD, FAST
from support.real.nats import NatsServer

WITHOUT_CONNECTOR: Services = (NormalizerService, ApprovalsService)
PEER: Services = (ConnectorService,)
OFTEN: dict[str, Any] = {**FAST, "watch_s": 0.1}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watchdog act at once, without waiting for the edge to send its command."""
    monkeypatch.setattr(watchdog, "UNSTARTED_S", 0.0)


def found(why: str) -> float:
    return float(telemetry.RUNS_STUCK.labels(why)._value.get())


async def test_a_run_whose_start_was_lost_ends_and_is_not_begun_by_what_comes_late(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    before = found("never_started")
    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        command = await penstock.register("agno", "hello")
        *_, last = await penstock.ended(command.run_id)
        await penstock.command("start", command)
        after = await penstock.start_run("agno", "another")
        await penstock.ended(after)
    assert (last.type, last.data["code"]) == ("lifecycle.failed", "not_sent")
    assert "start the run again" in last.data["error"]
    assert [call.form["run_id"] for call in upstream.calls] == [after]
    assert found("never_started") == before + 1


async def test_a_connector_that_stops_gives_the_lease_of_the_watchdog_back(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    async with connected(fresh_nats.url) as bus:
        leases = bus.bucket("leases")
        async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN):
            await eventually(lambda: leases.get("watchdog"), 30, "the lease of the watchdog")
        assert await leases.get("watchdog") is None


async def test_an_open_leg_that_a_dead_connector_has_not_noted_is_ended(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    before = found("nobody_holds")
    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        command = await penstock.register("agno", "hello")
        dead = RawWriter(penstock.bus, command.run_id, "upstream", f"{DEAD}/1")
        facts = command.model_dump(include={"agent", "session_id", "user_id", "message"})
        await dead.write("open", orjson.dumps({**facts, "protocol": "agno"}), leg=1)
        *_, last = await penstock.ended(command.run_id)
    assert last.data["code"] == "outcome_unknown"
    assert not upstream.calls
    assert found("nobody_holds") == before + 1


async def paused(penstock: Pipeline) -> tuple[str, str]:
    """Pause a run; return its id and its approval's id."""
    run_id = await penstock.start_run("agno", "delete")
    *_, asked = await penstock.events_until(run_id, "lifecycle.paused")
    return run_id, asked.data["approval_id"]


def continued(upstream: Misbehaving) -> int:
    """Return how often a decision went upstream."""
    return len([call for call in upstream.calls if call.path.endswith("/continue")])


async def test_a_decision_whose_command_was_lost_is_sent_once_as_its_record_says(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    """The test deletes the command from the stream and publishes it later."""
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    before = found("never_sent")
    async with pipeline(fresh_nats.url, agents(upstream), WITHOUT_CONNECTOR) as penstock:
        async with pipeline(fresh_nats.url, agents(upstream), PEER, **FAST):
            run_id, approval_id = await paused(penstock)
        await penstock.decide(approval_id)
        subject = f"command.connector.continue.{run_id}"

        async def sent() -> bool:
            stored = await penstock.bus.tail("COMMANDS", subject)
            return stored is not None and await penstock.bus.delete("COMMANDS", stored.sequence)

        async def outbox_is_empty() -> bool:
            return await penstock.bus.bucket("approvals").get(f"outbox.{approval_id}") is None

        await eventually(sent)
        await eventually(outbox_is_empty)
        async with pipeline(fresh_nats.url, agents(upstream), PEER, **OFTEN):
            *_, last = await penstock.ended(run_id)
            await penstock.command("continue", await penstock.continue_command(approval_id))
            await penstock.ended(await penstock.start_run("agno", "another"))
    assert last.type == "lifecycle.completed"
    assert continued(upstream) == 1
    assert found("never_sent") == before + 1


async def test_a_decision_that_cannot_be_sent_again_ends_its_run(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    """The pause record, which the upstream needs to continue, is lost as well."""
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        run_id, approval_id = await paused(penstock)
        await penstock.bus.bucket("pauses").delete(run_id)
        await decided_and_lost(penstock, approval_id)
        *_, last = await penstock.ended(run_id)
    assert (last.type, last.data["code"]) == ("lifecycle.failed", "internal")
    assert continued(upstream) == 0


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        pytest.param(("RAW",), "completed", id="RAW: the claims of sendings say that it was not"),
        pytest.param(("KV_sent",), "completed", id="claims of sendings: RAW says that it was not"),
        pytest.param(("RAW", "KV_sent"), "history_lost", id="both: nobody knows"),
    ],
)
async def test_a_decision_is_not_sent_again_where_nobody_knows_whether_it_was(
    fresh_nats: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    lost: tuple[str, ...],
    how: str,
) -> None:
    losses: dict[str, tuple[Loss, ...]] = {}
    monkeypatch.setattr(Continuity, "of", lambda self, stream: losses.get(stream, ()))
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        run_id, approval_id = await paused(penstock)
        later = now().replace("20", "21", 1)  # in a hundred years
        losses.update({stream: (Loss(stream, 0, 0, 0, later),) for stream in lost})
        await decided_and_lost(penstock, approval_id)
        *_, last = await penstock.ended(run_id)
    assert last.data.get("code", last.type.partition(".")[2]) == how
    assert continued(upstream) == (how == "completed")


async def decided_and_lost(penstock: Pipeline, approval_id: str) -> None:
    bucket = penstock.bus.bucket("approvals")
    entry = await bucket.get(approval_id)
    assert entry is not None
    approval = ApprovalRecord.model_validate_json(entry.value)
    items = [Decided(item_id=item["item_id"], decision="approve") for item in approval.items]
    decision = Decision(outcome="approved", by="ada", at=now(), items=items)
    update = {"status": "decided", "decision": decision}
    value = approval.model_copy(update=update).dump()
    assert await bucket.update(approval_id, value, entry.revision)


async def test_a_leg_that_an_error_of_ours_has_left_open_is_dealt_with(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "FULL_SWEEP_S", 0.1)
    upstream.script(plays(agno_text("x")))
    before, run = found("not_held_here"), LegRunner.start

    async def breaks(self: LegRunner, *arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(LegRunner, "start", run)
        raise RuntimeError("a mistake")

    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        monkeypatch.setattr(LegRunner, "start", breaks)
        session = "s-left-open"
        run_id = await penstock.start_run("agno", "hello", session_id=session)
        following = await penstock.start_run("agno", "next", session_id=session)
        *_, last = await penstock.ended(run_id)
        *_, next_last = await penstock.ended(following)
    assert last.data["code"] == "outcome_unknown"
    assert next_last.type == "lifecycle.completed"
    assert found("not_held_here") == before + 1


@pytest.mark.parametrize("whose", ["a living one's", "a dead one's"])
async def test_a_note_that_a_killed_broker_has_brought_back_goes_away(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """A replica whose server was killed may return a deleted key."""
    monkeypatch.setattr(reaper, "FULL_SWEEP_S", 0.1)
    upstream.script(plays(agno_text("x")))
    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        run_id = await penstock.start_run("agno", "hello")
        *_, last = await penstock.ended(run_id)
        pod = (await penstock.raw(run_id))[0].connection.partition("/")[0]
        held = LegRecord(1, 1, "start", b"{}")
        key = f"active.{DEAD if whose.startswith('a dead') else pod}.{run_id}"
        claims = penstock.bus.bucket("claims")
        await claims.put(key, held.dump())

        async def is_gone() -> bool:
            return await claims.get(key) is None

        await eventually(is_gone, 30, "that the note is gone")
        frames = await penstock.raw(run_id)
    assert last.type == "lifecycle.completed"
    assert [frame.kind for frame in frames] == ["open", "bytes", "end"]
    assert len(upstream.calls) == 1


async def test_the_watchdog_ignores_runs_that_another_component_continues(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run streams, one waits behind it in its session, and one waits for a decision."""
    why = [stuck.value for stuck in watchdog.StuckReason]
    before = [found(each) for each in why]
    looked: list[str] = []
    examine = watchdog.Watchdog._examine

    async def examines(self: watchdog.Watchdog, run_id: str, watched: Any) -> None:
        looked.append(run_id)
        await examine(self, run_id, watched)

    monkeypatch.setattr(watchdog.Watchdog, "_examine", examines)
    upstream.script(plays(agno_pause()), plays(agno("RunStarted"), stalls))
    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        paused = await penstock.start_run("agno", "delete")
        await penstock.events_until(paused, "lifecycle.paused")
        runs = [await penstock.start_run("agno", n, session_id="s-let-be") for n in "12"]
        for run_id in runs:
            await penstock.events_until(run_id, "lifecycle.started")
        looked.clear()

        async def looked_at_each_often() -> bool:
            return all(looked.count(run_id) >= 4 for run_id in (paused, *runs))

        await eventually(looked_at_each_often, 30, "that each was looked at")
        await penstock.record(paused, "paused")
        for run_id in runs:
            await penstock.record(run_id, "running")
    assert [found(each) for each in why] == before


async def test_the_run_of_a_workflow_is_left_to_its_service_unless_its_start_was_lost(
    fresh_nats: NatsServer, upstream: Misbehaving
) -> None:
    """`begun` has a frame of its service, and `on_its_way` a command for it; `lost` has neither."""
    async with pipeline(fresh_nats.url, agents(upstream), PIPELINE, **OFTEN) as penstock:
        begun = await WorkflowRun(penstock).begin()
        on_its_way = await penstock.register("review", target="workflows")
        subject = command("workflows", "start", on_its_way.run_id)
        await penstock.bus.publisher.publish(Message(subject, on_its_way.dump(), {}))
        lost = await penstock.register("review", target="workflows")
        *_, last = await penstock.ended(lost.run_id)
        # The watchdog has looked at all open runs at least twice by now.
        for run_id in (begun.run_id, on_its_way.run_id):
            entry = await penstock.bus.bucket("runs").get(run_id)
            assert entry is not None
            assert RunRecord.model_validate_json(entry.value).status in ("queued", "running")
    assert (last.type, last.data["code"]) == ("lifecycle.failed", "not_sent")
