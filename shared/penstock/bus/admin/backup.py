"""Copies streams out of NATS and back, by the snapshots of the JetStream API.

The streams are copied one after another while services write, so each copy has the state of a
different moment. `in_order` returns the streams in a safe order: no copy refers to data that an
earlier copy lacks, unless the services can make these data again. The copy of EVENTS is older than
the copy of RAW, because the normalizer can make events again from RAW. The buckets that record what
was sent to agent servers are copied after COMMANDS. So their copies know of each sending that a
copied command may have caused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson
from nats.aio.msg import Msg

from penstock.bus import streams
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import ApiError, BusError, OutcomeUnknown
from penstock.bus.state.kv import Buckets
from penstock.bus.state.losses import BUCKET, MARKS, is_numbered

CHUNK_BYTES: Final = 128 * 1024  # the size of one part of a copy
ANSWER_S: Final = 30.0  # the most seconds that one part or one answer may take
# The streams that are not copied. Leases expire within seconds. A copied lease would only hold up
# the services that start.
NOT_COPIED: Final = frozenset({"KV_leases"})
# The streams that are copied first, in this order.
_FIRST: Final = (f"KV_{BUCKET}", streams.EVENTS, streams.JOURNAL, streams.RAW)
# The streams that are copied late, in this order. COMMANDS and SCHEDULES are copied after all other
# streams that are no buckets. The others are copied after all other buckets. KEYS is the last, so
# that it has the key of everything that was copied.
_LAST: Final = (
    *(streams.COMMANDS, streams.SCHEDULES, "KV_claims", "KV_sent", "OBJ_payloads"),
    streams.KEYS,
)


def in_order(names: Iterable[str]) -> list[str]:
    def place(name: str) -> tuple[int, int, str]:
        kind, _ = streams.kind_and_shard(name)
        if kind in _FIRST:
            return 0, _FIRST.index(kind), name
        if kind in _LAST:
            # KV buckets are copied after the streams from which services write them.
            return 2 if kind in _LAST[:2] else 4, _LAST.index(kind), name
        return 3 if name.startswith("KV_") else 1, 0, name

    return sorted(set(names) - NOT_COPIED, key=place)


async def snapshot(
    bus: HasJetStream, stream: str, write: Callable[[bytes], object]
) -> dict[str, Any]:
    """Copy a stream with its consumers; call `write` with each part of the copy. Returns the
    description that `restore` needs: `{"config": …, "state": …}`."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()
    went_on = asyncio.Event()

    async def take(msg: Msg) -> None:
        went_on.set()
        if end.done():
            return
        if not msg.data:
            status = (msg.headers or {}).get("Status", "")
            if status and status != "204":
                reason = (msg.headers or {}).get("Description", status)
                end.set_exception(BusError(f"the copy of {stream} stopped: {reason}"))
            else:
                end.set_result(None)
            return
        try:
            write(msg.data)
        except OSError as error:
            end.set_exception(error)
            return
        if msg.reply:
            await bus.jetstream.connection.publish(msg.reply)

    inbox = bus.jetstream.connection.new_inbox()
    subscription = await bus.jetstream.subscribe(inbox, take)
    try:
        request = {"deliver_subject": inbox, "chunk_size": CHUNK_BYTES, "jsck": False}
        answer = await bus.jetstream.api(f"STREAM.SNAPSHOT.{stream}", request, ANSWER_S)
        while not end.done():
            went_on.clear()
            await asyncio.wait([end], timeout=ANSWER_S)
            if not end.done() and not went_on.is_set():
                raise OutcomeUnknown(f"the copy of {stream} stopped: no part came in time")
        end.result()
    finally:
        end.cancel()
        await subscription.unsubscribe()
    return {"config": answer["config"], "state": answer["state"]}


async def restore(
    bus: HasJetStream, stream: str, described: dict[str, Any], parts: Iterable[bytes]
) -> None:
    """Make a stream from its copy. The stream must not exist yet."""
    answer = await bus.jetstream.api(f"STREAM.RESTORE.{stream}", described, ANSWER_S)
    target = answer["deliver_subject"]
    for part in parts:
        _check(stream, await bus.jetstream.request(target, part, ANSWER_S))
    _check(stream, await bus.jetstream.request(target, b"", ANSWER_S))


def _check(stream: str, answer: Msg) -> None:
    if answer.data and (error := orjson.loads(answer.data).get("error")):
        text = f"{stream}: {error.get('description', 'refused')}"
        raise ApiError(error.get("err_code", 0), text)


async def leave_out(bus: Buckets, ends: dict[str, int], count: int) -> None:
    """Record that each numbered stream may have had up to `count` messages after the restored ones.

    Clients and agent servers may know the sequences of these messages. The normalizer that starts
    next makes the sequences unusable, and records the loss (see `state.continuity`).
    """
    bucket = bus.bucket(BUCKET)
    entry = await bucket.get(MARKS)
    marks = orjson.loads(entry.value) if entry is not None else {}
    for stream, end in ends.items():
        if is_numbered(stream):
            # A run has only one command for each start, decision and cancel, but many messages in
            # the other numbered streams. So a hundredth of `count` is enough for COMMANDS.
            more = max(count // 100, 1) if stream == streams.COMMANDS else count
            marks[stream] = max(marks.get(stream, 0), end + more)
    await bucket.put(MARKS, orjson.dumps(marks))
