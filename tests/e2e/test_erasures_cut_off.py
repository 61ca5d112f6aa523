"""Power cuts in the midst of 100 erasures leave no run half erased (`make faults`).

The services and NATS end at once, at any moment. NATS comes back as it was (`sync_interval:
always`), or with files from two earlier moments, as on a disk that has not kept what it confirmed.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import httpx
import pytest

from penstock.bus.records.runs import RunRecord
from support.drive.bus import connected
from support.drive.searching import in_files, planted_in
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, misbehaving
from support.fakes.raw import agno_text
from support.real.deployment import CONTENT_KEY, Deployment, deployment
from support.real.nats import NatsServer
from support.recorded.older_store import all_streams, copied, put_back

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1500)]

RUNS, CUTS = 100, 3
ALWAYS = "sync_interval: always"
SERVICES = {"normalizer": 1, "approvals": 1, "connector": 1, "edge": 1}
# Leases of killed processes end soon.
QUICK: dict[str, Any] = {"pod_ttl_s": 4, "pod_renew_s": 0.5, "partition_ttl_s": 4}
DELETED = ("EVENTS", "RAW", "JOURNAL", "DEADLETTERS", "OBJ_payloads")
State = Literal["whole", "erased", "half", "away"]


async def answers(answer: Answer) -> None:
    """Say another planted text than the message has."""
    asked = re.search(r"plant-asked-([0-9a-f]{12})", answer.request.body.decode())
    assert asked is not None
    text = f"plant-said-{asked[1]}"
    await answer.whole(agno_text(text[:9], text[9:], " and nothing else"))


class Erasing:
    """A deployment in which the erasures of `runs` were asked for. `planted` has what they say."""

    def __init__(self, nats: NatsServer, penstock: Deployment, keys: str) -> None:
        self.nats, self.penstock = nats, penstock
        self.planted: dict[str, set[str]] = {}
        self._keys = (keys,) if keys else ()

    async def start(self) -> None:
        for _ in range(RUNS):
            key = uuid4().hex[:12]
            run_id = await self.penstock.run("agent", f"plant-asked-{key}")
            self.planted[run_id] = {f"plant-asked-{key}", f"plant-said-{key}"}

        async def said() -> bool:
            return set((await self.states()).values()) == {"whole"}

        await eventually(said, 300, "all runs have said their texts")

    async def ask(self, runs: Sequence[str]) -> None:
        """Ask for the erasures of these runs. While NATS is away, the edge refuses or is away."""

        async def one(run_id: str) -> None:
            with suppress(httpx.HTTPError):
                await self.penstock.http.delete(f"{edge}/v1/runs/{run_id}/content")

        edge = self.penstock.edge()
        await asyncio.gather(*map(one, runs))

    async def states(self) -> dict[str, State]:
        found = await asyncio.gather(*map(self._state, self.planted))
        return dict(zip(self.planted, found, strict=True))

    async def _state(self, run_id: str) -> State:
        url = f"{self.penstock.edge()}/v1/runs/{run_id}"
        try:
            shown, events = [
                await self.penstock.http.get(each, headers={"accept": "application/json"})
                for each in (url, f"{url}/events")
            ]
        except httpx.HTTPError:
            return "away"
        if not (shown.is_success and events.is_success):
            return "away"
        body = shown.json()
        seen = planted_in(shown.content) | planted_in(events.content)
        if body.get("erasure") is None:
            is_whole = seen >= self.planted[run_id] and body["status"] == "completed"
            return "whole" if is_whole else "half"
        is_erased = body["erasure"].get("erased_at") and not seen
        return "erased" if is_erased and b'"action":"erased"' in events.content else "half"

    async def settled(self) -> dict[str, State]:
        """Wait until no run is half erased; return the states."""

        async def whole_or_erased() -> dict[str, State] | None:
            seen.update(await self.states())
            return seen if set(seen.values()) <= {"whole", "erased"} else None

        seen: dict[str, State] = {}
        try:
            return await eventually(whole_or_erased, 300, "each run is whole or erased")
        except TimeoutError as error:
            left = {run: state for run, state in seen.items() if state not in ("whole", "erased")}
            raise AssertionError(f"{left}") from error

    async def cut(self, *, older: bool) -> None:
        """End everything at once, and start it again."""
        names = all_streams(self.nats)
        if older:
            names = random.sample(names, len(names))
            kept = copied(self.nats, *names[::2])
            await asyncio.sleep(random.uniform(0.05, 0.5))
            later = copied(self.nats, *names[1::2])
            for stream in names[1::2]:
                (later / stream).rename(kept / stream)
            print("of the first moment:", sorted(names[::2]))
            await asyncio.sleep(random.uniform(0, 2))  # erasures that are lost
        services = [each.service for each in self.penstock.instances]
        for instance in tuple(self.penstock.instances):
            await self.penstock.kill(instance)
        if older:
            await asyncio.to_thread(put_back, self.nats, kept, *names)
        else:
            await asyncio.to_thread(self.nats.kill)
            await asyncio.to_thread(self.nats.start)
        await asyncio.gather(*map(self.penstock.start, services))

    async def unfinished(self, runs: Sequence[str]) -> list[str]:
        """Return the erased runs that still have a key, or a record with content."""
        found = []
        async with connected(self.nats.url, content_keys=self._keys) as bus:
            for run_id in runs:
                record = await bus.bucket("runs").load(run_id, RunRecord)
                keys, _ = await bus.content.stored_keys(run_id)
                if record is None or record.message or keys.key is not None:
                    found.append(run_id)
        return found


@pytest.mark.parametrize("how", ["as it was", "older"])
@pytest.mark.parametrize("keys", ["", CONTENT_KEY], ids=["clear", "sealed"])
async def test_power_cuts_in_the_midst_of_a_hundred_erasures_leave_none_half_done(
    tmp_path: Path, keys: str, how: str
) -> None:
    nats = NatsServer(tmp_path / "nats", on_disk=True, jetstream=ALWAYS)
    nats.start()
    try:
        async with misbehaving() as upstream:
            upstream.script(answers)
            agents = [{"id": "agent", "protocol": "agno", "url": upstream.url, "timeout_s": 60}]
            settings = {**QUICK, **({"content_keys": keys} if keys else {})}
            made = deployment(nats.url, tmp_path / "p", agents, SERVICES, **settings)
            async with made as penstock:
                await cut_and_judge(Erasing(nats, penstock, keys), older=how == "older")
    finally:
        nats.remove()


async def cut_and_judge(scene: Erasing, *, older: bool) -> None:
    await scene.start()
    halves = 0
    for _ in range(CUTS):
        whole = [run for run, state in (await scene.settled()).items() if state == "whole"]
        asking = asyncio.create_task(scene.ask(whole))
        await asyncio.sleep(random.uniform(0.2, 1.5))  # at any moment of the erasures
        await scene.cut(older=older)
        await asking
        states = await scene.states()
        halves += sum(state == "half" for state in states.values())
        after = await scene.settled()
        print({state: [*after.values()].count(state) for state in ("whole", "erased")})
        erased = [run for run, state in after.items() if state == "erased"]
        gone = set().union(*(scene.planted[run] for run in erased))
        stored = in_files(scene.nats.store)
        streams = {path: texts & gone for path, texts in stored.items() if texts & gone}
        assert not [path for path in streams if any(f"/{each}/" in path for each in DELETED)]
        assert await scene.unfinished(erased) == []
    assert halves  # some cut came in the midst of erasures
    await scene.ask([*scene.planted])

    async def all_erased() -> bool:
        return set((await scene.states()).values()) == {"erased"}

    await eventually(all_erased, 300, "all runs are erased")
    assert await scene.unfinished([*scene.planted]) == []
