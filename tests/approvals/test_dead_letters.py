"""A request that cannot be recorded becomes a dead letter; a replay records the request once."""

from __future__ import annotations

import logging

import pytest

from penstock.bus.admin.replay import replay_letter
from penstock.bus.read import work_queue
from penstock.bus.state import deadletters
from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.dead_letters import the_letter
from support.drive.pipeline import Pipeline, Services, pipeline, types
from support.drive.waiting import eventually
from support.fakes.pauses import start_and_pause
from support.real.nats import NatsServer

WITHOUT: Services = (NormalizerService,)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "AGAIN_S", 0.02)


async def pause_without_record(penstock: Pipeline) -> tuple[str, bytes]:
    """Return a paused run whose run record is deleted, so the owner of its request is unknown.

    Returns the run's id and the deleted record.
    """
    run_id = await start_and_pause(penstock)

    async def followed() -> bool:
        return (await penstock.record(run_id)).status == "running"

    await eventually(followed, what="the run's record, moved on")
    entry = await penstock.bus.bucket("runs").get(run_id)
    assert entry is not None
    await penstock.bus.bucket("runs").delete(run_id)
    return run_id, entry.value


async def test_a_request_that_was_given_up_is_asked_when_it_is_put_back(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        run_id, record = await pause_without_record(penstock)
        async with pipeline(nats.url, Config(), (ApprovalsService,)):
            found = await the_letter(penstock.bus, "approvals", run_id)
            await penstock.bus.bucket("runs").put(run_id, record)
            assert await replay_letter(penstock.bus, found)
            await penstock.events_until(run_id, "lifecycle.paused")
            # The same dead letter is replayed again, as by an operator who has not seen the first
            # replay.
            await replay_letter(penstock.bus, found)
            events = await penstock.events_until(run_id, "lifecycle.paused")
    assert types(events).count("lifecycle.paused") == 1
    letter = found.letter
    assert letter.subject == f"approval.requested.{run_id}"
    assert letter.delivered == 5
    assert "has no record" in letter.reason
    with_traceback = [
        record
        for record in caplog.records
        if letter.traceback_id in record.getMessage() and record.exc_info
    ]
    assert [record.levelno for record in with_traceback] == [logging.ERROR] * 5


async def test_what_fails_again_when_it_is_put_back_is_another_letter(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        run_id, record = await pause_without_record(penstock)
        async with pipeline(nats.url, Config(), (ApprovalsService,)):
            first = await the_letter(penstock.bus, "approvals", run_id)
            await replay_letter(penstock.bus, first)

            async def second() -> deadletters.Letter | None:
                letters = deadletters.letters(penstock.bus, "approvals", run_id)
                all_of_them = [found async for found in letters]
                return all_of_them[1] if len(all_of_them) == 2 else None

            again = await eventually(second, what="a second letter")
            assert again is not None
            assert again.letter.subject == f"command.approvals.replay.{run_id}"
            await penstock.bus.bucket("runs").put(run_id, record)
            await replay_letter(penstock.bus, again)
            await penstock.events_until(run_id, "lifecycle.paused")
