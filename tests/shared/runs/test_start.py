"""A caller that has stored a run's id starts the run once, however often it repeats the start."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock.bus import Bus, BusUnavailable
from penstock.bus.records.legs import SessionRecord
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.bus.streams import COMMANDS
from penstock.bus.subjects import command, session_key
from penstock.bus.write.objects import unwrap
from penstock.redactions.document import CurrentRedactions
from penstock.runs.settings import StartSettings
from penstock.runs.start import Origin, Start, Starter
from penstock.settings import AgnoAgent, Config, WorkflowAgent
from penstock.web.auth.identity import RunUser
from penstock.web.problems import Problem
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer

AGENT = AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORIGIN = Origin("019aab00-0000-7000-8000-000000000001", ("first", "second"), 2, "step_lint", 2)


def starter(bus: Bus, **settings: Any) -> Starter:
    return Starter(bus, Config(agents=[AGENT, REVIEW]), StartSettings(**settings))


async def commands_of(bus: Bus, run_id: str, target: str = "*") -> int:
    info = await bus.api(
        f"STREAM.INFO.{COMMANDS}", {"subjects_filter": command(target, "start", run_id)}
    )
    return sum((info["state"].get("subjects") or {}).values())


async def test_a_start_with_a_stored_id_is_repeated_without_a_second_run(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        run_id = await starter(bus).new_run_id("alice", "s1")
        asked = Start(
            AGENT,
            "Hello",
            "s1",
            RunUser("alice", (), ["ada"], ""),
            run_id=run_id,
            origin=ORIGIN,
            traceparent=TRACE,
        )
        first = await starter(bus).start(asked)
        again = await starter(bus).start(asked)
        assert (first.new, again.new) == (True, False)
        assert first.record.run_id == again.record.run_id == run_id
        assert await commands_of(bus, run_id) == 1
        stored = await bus.tail(COMMANDS, command("connector", "start", run_id))
        assert stored is not None
        sent = StartCommand.model_validate_json(await unwrap(bus, stored.payload))
        assert (sent.parent_run_id, sent.traceparent) == (ORIGIN.parent_run_id, TRACE)
        assert (sent.step_id, sent.workflow_depth) == ("step_lint", 2)
        entry = await bus.bucket("runs").get(run_id)
        assert entry is not None
        record = RunRecord.model_validate_json(entry.value)
        assert (record.automations, record.depth) == (["first", "second"], 2)
        assert record.parent_run_id == ORIGIN.parent_run_id
        assert (record.step_id, record.workflow_depth) == ("step_lint", 2)


async def test_a_run_that_has_begun_is_not_started_again(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as bus:
        run_id = await starter(bus).new_run_id("alice", None)
        asked = Start(AGENT, "Hello", None, RunUser("alice", (), (), ""), run_id=run_id)
        started = await starter(bus).start(asked)
        ended = started.record.model_copy(update={"status": "completed"})
        await bus.bucket("runs").put(run_id, ended.dump())
        stored = await bus.tail(COMMANDS, command("connector", "start", run_id))
        assert stored is not None
        await bus.delete(COMMANDS, stored.sequence)
        assert (await starter(bus).start(asked)).record.status == "completed"
        assert await bus.tail(COMMANDS, command("connector", "start", run_id)) is None


async def test_a_start_that_was_cut_before_its_command_is_completed_by_its_repeat(
    nats_server: NatsServer,
) -> None:
    async def cut(_: str) -> None:
        raise BusUnavailable("cut")

    async with connected(nats_server.url) as bus:
        run_id = await starter(bus).new_run_id("alice", None)
        asked = Start(AGENT, "Hello", None, RunUser("alice", (), (), ""), run_id=run_id)
        with pytest.raises(BusUnavailable):
            await starter(bus).start(replace(asked, prepare=cut))
        assert await commands_of(bus, run_id) == 0
        assert (await starter(bus).start(asked)).new
        assert await commands_of(bus, run_id) == 1


@pytest.mark.parametrize("later", [("email",), ()])
async def test_a_start_that_is_repeated_has_the_redactions_of_its_first_attempt(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, later: tuple[str, ...]
) -> None:
    def document(version: int, *kinds: str) -> dict[str, Any]:
        rules = [{"id": "r", "kinds": kinds}] if kinds else []
        return {"version": version, "redact": rules}

    async def dies(_: Starter, command: StartCommand) -> None:
        raise asyncio.CancelledError(command.run_id)

    async with connected(nats_server.url) as bus:
        redactions = CurrentRedactions(bus)
        await redactions.load()
        first = redactions.current.version + 1
        await redactions.apply(document(first, "card"), "ada")
        run_id = await starter(bus).new_run_id("alice", None)
        asked = Start(AGENT, "4111111111111111", None, RunUser("alice", (), (), ""), run_id=run_id)
        with monkeypatch.context() as patched:
            patched.setattr(Starter, "_publish", dies)
            with pytest.raises(asyncio.CancelledError):
                await starter(bus).start(asked)
        try:
            await redactions.apply(document(first + 1, *later), "ada")
            again = await starter(bus).start(asked)
        finally:
            await bus.bucket("policies").delete("redactions")
        assert again.record.redactions == first
        sent = await started(bus, "connector", run_id)
        assert sent.redactions is not None
        assert sent.redactions["version"] == first
        assert [each["kinds"] for each in sent.redactions["rules"]] == [["card"]]


REVIEW = WorkflowAgent(id="review", protocol="workflow", agent="code_review")
SCHEMA = {
    "type": "object",
    "properties": {"diff": {"type": "string"}, "message": {"type": "string"}},
    "required": ["diff"],
    "additionalProperties": False,
}


async def define(bus: Bus, name: str, version: str, schema: dict[str, Any]) -> None:
    record = WorkflowRecord(
        name=name,
        version=version,
        digest="",
        definition={},
        input_schema=schema,
        created_at="2026-11-22T10:00:00.000Z",
        created_by="ada",
    )
    await bus.bucket("workflows").put(f"v.{name}.{version}", record.dump())
    latest = LatestWorkflow(version=version)
    await bus.bucket("workflows").put(f"latest.{name}", latest.dump())


async def started(bus: Bus, target: str, run_id: str) -> StartCommand:
    stored = await bus.tail(COMMANDS, command(target, "start", run_id))
    assert stored is not None
    return StartCommand.model_validate_json(await unwrap(bus, stored.payload))


async def test_a_workflow_is_started_by_the_service_workflows_with_its_checked_input(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        await define(bus, "code_review", "1.2", SCHEMA)
        asked = Start(
            REVIEW,
            "Review it",
            "s-review",
            RunUser("alice", ["dev"], ["ada"], ""),
            input={"diff": "+1"},
            origin=replace(ORIGIN, step_id=None),
        )
        run = (await starter(bus).start(asked)).record
        assert run.target == "workflows"
        assert await commands_of(bus, run.run_id, "connector") == 0
        sent = await started(bus, "workflows", run.run_id)
        assert (sent.agent, sent.workflow, sent.version) == ("review", "code_review", "1.2")
        assert sent.input == {"diff": "+1", "message": "Review it"}
        assert (sent.roles, sent.automations, sent.depth) == (["dev"], ["first", "second"], 2)
        entry = await bus.bucket("sessions").get(session_key("alice", "review", "s-review"))
        assert entry is not None
        assert SessionRecord.model_validate_json(entry.value).runs == [run.run_id]


@pytest.mark.parametrize(
    ("agent", "given", "status", "text"),
    [
        (REVIEW, {}, 422, "input.diff: is missing"),
        (REVIEW, {"diff": 1}, 422, "input.diff: must be string, not 1"),
        (REVIEW, {"diff": "", "dif": 1}, 422, "input.dif: there is no such field"),
        (REVIEW.model_copy(update={"version": "9"}), {}, 404, "no version 9"),
        (REVIEW.model_copy(update={"agent": "other"}), {}, 404, "there is no workflow 'other'"),
    ],
)
async def test_a_start_that_a_workflow_cannot_take_starts_nothing(
    nats_server: NatsServer,
    agent: WorkflowAgent,
    given: dict[str, Any],
    status: int,
    text: str,
) -> None:
    async with connected(nats_server.url) as bus:
        await define(bus, "code_review", "1", SCHEMA)
        run_id = await starter(bus).new_run_id("alice", None)
        with pytest.raises(Problem, match=text) as refused:
            await starter(bus).start(
                Start(agent, "", None, RunUser("alice", (), (), ""), input=given, run_id=run_id)
            )
        assert refused.value.status == status
        assert await bus.bucket("runs").get(run_id) is None
        assert await commands_of(bus, run_id) == 0


@pytest.mark.parametrize(
    ("message", "given", "shown"),
    [
        (
            "",
            {"diff": "+password = 1", "lines": 3, "more": {"a": ["b", None]}},
            "+password = 1 3 b",
        ),
        ("Look", {"diff": "+password = 1"}, "Look"),
        ("", {"diff": "x" * 300}, "x" * 200),
        ("", {}, ""),
    ],
)
async def test_lists_show_a_workflows_run_by_its_message_or_by_what_its_input_says(
    nats_server: NatsServer, message: str, given: dict[str, Any], shown: str
) -> None:
    async with connected(nats_server.url) as bus:
        await define(bus, "code_review", "1", {})
        asked = Start(REVIEW, message, None, RunUser("alice", (), (), ""), input=given)
        record = (await starter(bus).start(asked)).record
        assert record.message == shown
        # The run itself has no message that nobody has sent.
        assert (await started(bus, "workflows", record.run_id)).message == message


async def test_a_start_is_repeated_although_the_workflow_has_another_version_now(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        await define(bus, "code_review", "1", {})
        asked = Start(REVIEW, "Hello", "s1", RunUser("alice", (), (), ""), key="k", request=b"x")
        first = await starter(bus).start(asked)
        await define(bus, "code_review", "2", SCHEMA)
        again = await starter(bus).start(asked)
        assert (first.new, again.new) == (True, False)
        assert again.record.run_id == first.record.run_id
        assert (await started(bus, "workflows", first.record.run_id)).version == "1"
        with pytest.raises(Problem, match="another request") as refused:
            await starter(bus).start(replace(asked, request=b"y"))
        assert refused.value.status == 409
        assert await commands_of(bus, first.record.run_id) == 1


async def test_a_user_whose_runs_wait_for_decisions_may_start_no_more_than_the_settings_say(
    nats_server: NatsServer,
) -> None:
    """Each service that starts runs has these settings, so none of them is a way around."""
    async with connected(nats_server.url) as bus:
        limited = starter(bus, max_paused_runs_per_user=1)
        following = asyncio.create_task(limited.follow())
        asked = Start(AGENT, "Hello", None, RunUser("carl", (), (), ""))
        first = (await limited.start(asked)).record
        waits = first.model_copy(update={"status": "paused"})
        await bus.bucket("runs").put(first.run_id, waits.dump())

        async def is_refused() -> bool:
            try:
                await limited.start(asked)
            except Problem as problem:
                return problem.status == 429 and "wait for decisions" in problem.detail
            return False

        await eventually(is_refused, 30, "no more starts")
        following.cancel()
        await asyncio.wait({following})


async def test_the_runs_of_a_workflow_do_not_fail_at_the_limit_of_open_runs(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        limited = starter(bus, max_open_runs_per_user=1)
        await limited.start(Start(AGENT, "Hello", None, RunUser("bob", (), (), "")))
        with pytest.raises(Problem, match="cancel some") as refused:
            await limited.start(Start(AGENT, "Hello", None, RunUser("bob", (), (), "")))
        assert refused.value.status == 429
        run_id = await limited.new_run_id("bob", None)
        step = Start(AGENT, "Hello", "s2", RunUser("bob", (), (), ""), run_id=run_id, origin=ORIGIN)
        assert (await limited.start(step)).new
