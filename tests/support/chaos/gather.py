"""Collect the data that a round leaves behind, where possible without the product's own reads."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.bus import Stored
from penstock.bus.messages import raw_frame
from penstock.bus.read.leader import stored_of
from penstock.bus.streams import events_of, raw_of
from penstock.bus.subjects import shard_of
from penstock.dialects.decoders import DECODERS
from penstock_normalizer.fold.run_fold import RunFold
from support.chaos import deliveries
from support.chaos.brokers import Brokers
from support.chaos.checker import TRANSIENT, outcome_of
from support.chaos.clients import Story
from support.chaos.evidence import Evidence, Processes, RawFrame, Remains, exchanges_of
from support.chaos.recorder import Recorder
from support.fakes.receiver import Receiver

_BATCH = 500
_OWNED = re.compile(r"^pod\.|\.member\.|\.part\.")  # the keys of leases that a process holds
_GONE = ("KV-Operation", "Nats-Marker-Reason")
# The lease of an ended connector lasts 15 s, and other connectors look for its legs every 4 s.
_REMAINS_TIMEOUT_S = 40.0
_LOOK_AGAIN_S = 1.0
_CLOCKS_S = 10.0
_READ_TIMEOUT_S = 180.0
_STILL_S = 20.0  # this long without a change, the data is final


async def runs(
    brokers: Brokers,
    recorders: Sequence[Recorder],
    stories: Sequence[Story],
    tool_runs: Callable[[], Sequence[dict[str, Any]]],
    hooks: Receiver | None = None,
) -> list[Evidence]:
    """Return the evidence of each run when the streams no longer change.

    A client leaves at the run's end. Later events and the end in the list of runs may be written
    after that. So this function reads again while anything changes, and for some seconds
    afterwards.
    """
    deadline, before = 0.0, -1
    while True:
        found = await _runs(brokers, recorders, stories, tool_runs())
        if hooks is not None:
            requests = deliveries.requests_of(hooks)
            for run in found:
                run.requests = requests.get(run.run_id, [])
        under_way = [
            run
            for run in found
            if run.bodies != run.folded or not _is_listed(run) or not _is_delivered(run)
        ]
        stands = sum(len(run.bodies) + len(run.folded) for run in found) - len(under_way)
        if stands != before:
            deadline, before = time.monotonic() + _STILL_S, stands
        if not under_way or time.monotonic() > deadline:
            return found
        await asyncio.sleep(_LOOK_AGAIN_S)


def _is_delivered(run: Evidence) -> bool:
    if run.requests is None:
        return True
    return deliveries.expected(run.run_id, run.events) <= set(deliveries.outcomes(run.events))


def _is_listed(run: Evidence) -> bool:
    return run.status == outcome_of(run).partition(" ")[0]


async def _runs(
    brokers: Brokers,
    recorders: Sequence[Recorder],
    stories: Sequence[Story],
    tool_runs: Sequence[dict[str, Any]],
) -> list[Evidence]:
    async with brokers.connect() as client:
        shards = sorted({shard_of(story.run_id) for story in stories})
        events = _by_run([m for s in shards for m in await read(client, events_of(s))], -1)
        frames = _by_run([m for s in shards for m in await read(client, raw_of(s))], 2)
        records = {
            msg.subject.rpartition(".")[2]: json.loads(msg.data)
            for msg in await read(client, "KV_runs")
            if not _is_gone(msg)
        }
    exchanges = [exchange for recorder in recorders for exchange in recorder.exchanges]
    return [
        Evidence(
            plan=story.plan,
            run_id=story.run_id,
            bodies=[msg.data for msg in events[story.run_id]],
            folded=_folded(story.run_id, frames[story.run_id]),
            frames=[_frame(msg) for msg in frames[story.run_id]],
            exchanges=exchanges_of(story.plan, story.run_id, exchanges),
            views=story.views,
            decisions=story.decisions,
            cancels=story.cancels,
            other_ids=story.other_ids,
            tool_runs=_ran(story, tool_runs),
            status=records.get(story.run_id, {}).get("status", "not there"),
        )
        for story in stories
    ]


async def remains(
    brokers: Brokers, processes: Callable[[], Processes], stories: Sequence[Story]
) -> Remains:
    """Return what is left in the system, after waiting for transient remains to go."""
    known = {story.run_id for story in stories}
    # Of a client that gave up before any answer named its run, only the session is known.
    known |= {story.plan.session_id for story in stories if not story.run_id}
    deadline = time.monotonic() + _REMAINS_TIMEOUT_S
    async with brokers.connect() as client:
        while True:
            left = await _remains(client, processes(), known)
            left.refused = brokers.refused()
            if not any(getattr(left, name) for name in TRANSIENT) or time.monotonic() > deadline:
                return left
            await asyncio.sleep(_LOOK_AGAIN_S)


async def _remains(client: Client, processes: Processes, known: set[str]) -> Remains:
    async def keys(bucket: str) -> dict[str, bytes]:
        return {key: msg.data for key, msg in (await entries(bucket)).items()}

    async def entries(bucket: str) -> dict[str, Msg]:
        found = await read(client, f"KV_{bucket}")
        prefix = f"$KV.{bucket}."
        return {msg.subject.removeprefix(prefix): msg for msg in found if not _is_gone(msg)}

    alive = set(map(str, processes.alive))
    leases = await entries("leases")
    owners = {
        key: msg.data.decode() if ".part." in key else key.rpartition(".")[2]
        for key, msg in leases.items()
        if _OWNED.search(key)
    }
    return Remains(
        commands=await _subjects(client, "COMMANDS"),
        dead_letters=[
            f"{msg.subject} {(msg.headers or {}).get('Penstock-Reason')}"
            for msg in await read(client, "DEADLETTERS")
        ],
        leases=[
            f"{key}, {_age_s(leases[key]):.0f} s old"
            for key, owner in owners.items()
            if not alive & set(owner.split("-")) and await _stands(client, "leases", key)
        ],
        claims=[
            key
            for key in await keys("claims")
            if key.startswith("active.") and await _stands(client, "claims", key)
        ],
        queues=[
            key for key, value in (await keys("sessions")).items() if json.loads(value).get("queue")
        ],
        deliveries=[
            *await _subjects(client, "DELIVERIES"),
            *(
                subject
                for subject in await _subjects(client, "SCHEDULES")
                # A due message that was acknowledged may be left after a kill; its TTL ends it.
                if subject.startswith("schedule.automations.")
            ),
        ],
        outbox=[key for key in await keys("approvals") if key.startswith("outbox.")],
        strangers=[
            key
            for key, value in (await keys("runs")).items()
            if not known & {key, (record := json.loads(value))["session_id"]}
            and not _is_of_workflow(record)
        ],
        exits=[*processes.exits],
    )


def _is_of_workflow(record: dict[str, Any]) -> bool:
    """Return whether this is the record of a workflow's run, which `flows` checks, or of a step."""
    return record.get("target") == "workflows" or bool(record.get("workflow_depth"))


async def read(client: Client, stream: str) -> list[Msg]:
    """Return every message of a stream in order. A starved machine may need several tries."""
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while True:
        try:
            return await _read(client, stream)
        except (NatsError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_AGAIN_S)


async def _read(client: Client, stream: str) -> list[Msg]:
    """Read the stream through a consumer, which any of the replicas may serve."""
    js = client.jetstream(timeout=10)
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE, inactive_threshold=30
    )
    found: list[Msg] = []
    subscription = await js.pull_subscribe(">", stream=stream, config=config)
    try:
        pending = (await subscription.consumer_info()).num_pending or 0
        while len(found) < pending:
            found += await subscription.fetch(min(_BATCH, pending - len(found)), timeout=10)
    finally:
        await subscription.unsubscribe()
    return found


async def _stands(client: Client, bucket: str, key: str) -> bool:
    """Return whether the leader also has the key.

    A broker that was killed may return a deleted key. A lease whose TTL has long passed does not
    count, even if the leader has it.
    """
    asked = json.dumps({"last_by_subj": f"$KV.{bucket}.{key}"}).encode()
    answer = await client.request(f"$JS.API.STREAM.MSG.GET.KV_{bucket}", asked, timeout=10)
    message = json.loads(answer.data).get("message")
    if message is None:
        return False
    stored = stored_of(message)
    if any(name in stored.headers for name in _GONE):
        return False
    ttl_s = float(stored.headers.get("Nats-TTL", "inf").removesuffix("s"))
    age_s = time.time() - datetime.fromisoformat(message["time"]).timestamp()
    return age_s < 2 * ttl_s + _CLOCKS_S


async def _subjects(client: Client, stream: str) -> list[str]:
    """Return the subjects of the messages in a work queue.

    Reading the messages is impossible here: a work queue allows only one consumer per subject.
    """
    asked = json.dumps({"subjects_filter": ">"}).encode()
    answer = await client.request(f"$JS.API.STREAM.INFO.{stream}", asked, timeout=10)
    return list(json.loads(answer.data)["state"].get("subjects") or ())


def _by_run(messages: Iterable[Msg], token: int) -> dict[str, list[Msg]]:
    found: dict[str, list[Msg]] = defaultdict(list)
    for msg in messages:
        found[msg.subject.split(".")[token]].append(msg)
    return found


def _is_gone(msg: Msg) -> bool:
    return any(name in (msg.headers or {}) for name in _GONE)


def _age_s(msg: Msg) -> float:
    return time.time() - msg.metadata.timestamp.timestamp()


def _frame(msg: Msg) -> RawFrame:
    headers = msg.headers or {}
    return RawFrame(
        msg.subject.rpartition(".")[2],
        headers["Penstock-Kind"],
        int(headers["Penstock-Leg"]),
        headers["Penstock-Connection"],
        msg.data,
        msg.metadata.timestamp.timestamp(),
    )


def _folded(run_id: str, messages: Iterable[Msg]) -> list[bytes]:
    """Return the events that a fold in the test makes of the run's frames."""
    fold = RunFold(run_id, DECODERS)
    return [
        placed.body
        for msg in messages
        for placed in fold.feed(
            raw_frame(
                Stored(msg.subject, msg.metadata.sequence.stream, msg.headers or {}, msg.data)
            )
        )
    ]


def _ran(story: Story, tool_runs: Sequence[dict[str, Any]]) -> int:
    """Return how often a tool that needs approval ran for this run."""
    if story.plan.decision is None:
        return 0
    # Runs of Agno may share a session, and their calls contain the mark. Some calls of ADK do not.
    by_session = story.plan.agent != "agno"
    return sum(
        story.plan.mark in json.dumps(ran["args"])
        or (by_session and ran.get("session") == story.plan.session_id)
        for ran in tool_runs
    )
