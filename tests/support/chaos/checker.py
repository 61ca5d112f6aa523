"""The checks of every run after a round. They do no I/O.

Each check is a function from the evidence to sentences about what is wrong. The checks use no code
of the product except its fold, whose result is part of the evidence.

A sentence of type `Late` is about something that may only have taken too long. Such a sentence
proves nothing on a starved machine. Every other sentence is about a defect on any machine: a
sequence number twice, a changed text, a second call of the agent server.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

from support.chaos import deliveries, wire
from support.chaos.evidence import Evidence, Late, RawFrame, Remains
from support.chaos.recorder import Exchange

ENDS = {"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"}
EPILOGUE = ("automation.", "approval.withdrawn")
LOST = {"not_sent", "upstream_lost", "outcome_unknown"}
# The checks that do not apply to a run that was open when this stream lost its newest messages.
# Three guarantees always apply: the sequence has no gap, the list of runs knows the one end, and
# each request went upstream at most once.
_CANNOT_HOLD = {
    "RAW": {
        "reason",
        "gone on",
        "views",
        "bytes",
        "words",
        "content",
        "tools",
        "decision",
        "deliveries",
    },
    "EVENTS": {"views", "deliveries"},  # lost events are folded again, and clients begin anew
    "COMMANDS": {"views", "tools", "decision"},
}
# The remains that may exist for a while and are then removed without help.
TRANSIENT = {"commands", "leases", "claims", "queues", "outbox", "deliveries"}
SHOWN = 600  # characters of an event in a message
POD_TTL_S = 15.0  # TTL of a connector's lease, unless a round sets another
AGNO_KEEPS = 1000  # events of a run that Agno keeps for a reconnecting client


@dataclass(frozen=True, slots=True)
class Violation:
    """One defect. `run` is the run's mark and id, or empty."""

    check: str
    run: str
    text: str
    late: bool = False  # true if more time might have helped

    def __str__(self) -> str:
        return f"{self.check}: {self.run}: {self.text}"


@dataclass(frozen=True, slots=True)
class Hurt:
    """A process that was killed, paused or cut off from the bus, and the time of this fault."""

    pid: int | None  # None: a broker, to which any process may be connected
    from_s: float  # both times in seconds since 1970
    until_s: float


@dataclass(frozen=True, slots=True)
class Harm:
    """The faults of a round that may cause the loss of an upstream."""

    hurts: Sequence[Hurt] = ()
    lease_s: float = POD_TTL_S  # TTL after which a connector counts as ended

    def reached(self, pids: set[int | None], from_s: float, until_s: float) -> bool:
        """Return whether a fault of these processes or of a broker may have had an effect then.

        A fault that ended less than a lease's TTL before `from_s` may still have an effect.
        """
        return any(
            hurt.from_s <= until_s and hurt.until_s >= from_s - self.lease_s
            for hurt in self.hurts
            if hurt.pid is None or hurt.pid in pids
        )


Check = Callable[[Evidence, Harm], Iterable[str]]


def check_run(run: Evidence, harm: Harm) -> list[Violation]:
    """Return everything that is wrong with one run."""
    name = f"{run.plan.mark} {run.run_id}"
    return [
        Violation(check, name, text, isinstance(text, Late))
        for check, find in CHECKS.items()
        if not any(check in _CANNOT_HOLD[stream] for stream in run.loses)
        for text in find(run, harm)
    ]


def check_remains(remains: Remains) -> list[Violation]:
    """Return what is left of runs that are over. Transient remains are marked as late."""
    return [
        Violation(each.name, "", str(text), each.name in TRANSIENT)
        for each in fields(remains)
        for text in getattr(remains, each.name)
    ]


def type_of(event: dict[str, Any]) -> str:
    return f"{event['event']['category']}.{event['event']['action']}"


def types_of(run: Evidence) -> list[str]:
    return [type_of(event) for event in run.events]


def has_ended(run: Evidence) -> bool:
    """Return whether the run has a terminal event."""
    return not ENDS.isdisjoint(types_of(run))


def is_behind(run: Evidence) -> bool:
    """Return whether the events are the beginning of those that RAW makes, and more must follow."""
    return len(run.bodies) < len(run.folded) and run.folded[: len(run.bodies)] == run.bodies


def outcome_of(run: Evidence) -> str:
    """Return the terminal event's action, with the code of a failure.

    For a run without a terminal event, return the action of its last lifecycle event, or `nothing`.
    """
    for event in run.events:
        if type_of(event) in ENDS:
            code = event["data"].get("code")
            action = str(event["event"]["action"])
            return f"{action} ({code})" if code else action
    lifecycle = [name for name in types_of(run) if name.startswith("lifecycle.")]
    return lifecycle[-1].removeprefix("lifecycle.") if lifecycle else "nothing"


def _numbers(run: Evidence, harm: Harm) -> Iterator[str]:
    sequences = [event["sequence"] for event in run.events]
    if sequences != list(range(1, len(sequences) + 1)):
        yield f"the sequence is {sequences}"
    times = [event["timestamp"] for event in run.events]
    if times != sorted(times):
        yield "the times go back"
    if {event["run_id"] for event in run.events} - {run.run_id}:
        yield "an event is another run's"


def _start(run: Evidence, harm: Harm) -> Iterator[str]:
    starts = [place for place, name in enumerate(types_of(run)) if name == "lifecycle.started"]
    if starts != [0]:
        word = str if run.events else Late
        yield word(f"lifecycle.started stands at {starts}")


def _end(run: Evidence, harm: Harm) -> Iterator[str]:
    names = types_of(run)
    ends = [place for place, name in enumerate(names) if name in ENDS]
    if len(ends) > 1:
        yield f"it ends {len(ends)} times: {[names[place] for place in ends]}"
    if ends and not all(name.startswith(EPILOGUE) for name in names[ends[0] + 1 :]):
        yield f"after its end comes {names[ends[0] + 1 :]}"
    if not ends and (run.plan.decision != "none" or outcome_of(run) != "paused"):
        yield Late(f"it has not ended, but is {outcome_of(run)}")


def _outcome(run: Evidence, harm: Harm) -> Iterator[str]:
    outcome = outcome_of(run)
    codes = LOST | {"history_lost"} if run.loses else LOST
    allowed = {"completed", *(f"failed ({code})" for code in codes)}
    if run.plan.cancel_after is not None:
        allowed.add("cancelled")
    if run.plan.decision == "none":
        allowed = allowed - {"completed"} | {"paused"}
    # The agent servers answer within seconds, so only on a slow machine `timeout_s` passes first.
    word = str if has_ended(run) and outcome != "failed (timeout)" else Late
    if outcome not in allowed:
        last = run.events[-1]["data"] if run.events else None
        yield word(f"it is {outcome}: {last}")
    if 200 in {answer.status for answer in run.cancels} and outcome != "cancelled":
        yield word(f"a client was told that it is cancelled, but it is {outcome}")
    if run.status != outcome.partition(" ")[0]:
        # The normalizer writes the events before it updates the list of runs.
        yield Late(f"the list of runs says {run.status}, the events {outcome}")


def _reason(run: Evidence, harm: Harm) -> Iterator[str]:
    """A run may lose its upstream only if a fault hit its connector or the upstream connection."""
    if not _is_lost(run):
        return
    frames, exchanges = _last_leg(run)
    holders = {_pid(frame.connection) for frame in frames}
    was_hurt = harm.reached(holders, frames[0].stored_at, frames[-1].stored_at)
    if not was_hurt and not any(each.ended == "cut" for each in exchanges):
        # On a slow machine, the connector may have renewed its lease too late.
        yield Late(
            f"leg {frames[0].leg} is lost, and nobody had hurt it: {_last_word(run, exchanges)}"
        )


def _gone_on(run: Evidence, harm: Harm) -> Iterator[str]:
    """A connector must continue the first leg of a run of Agno 3 after any kill.

    Agno 3 keeps a run's events for a client that reconnects.
    """
    if not _is_lost(run) or run.plan.agent != "agno":
        return
    frames, exchanges = _last_leg(run)
    indexes = [
        index for written in run.written.get(1, {}).values() for index in wire.agno_indexes(written)
    ]
    cuts = sum(each.ended == "cut" for each in exchanges)
    # After several cuts, a reconnecting connector gives up.
    if frames[0].leg == 1 and indexes and max(indexes) < AGNO_KEEPS and cuts <= 1:
        # The sentence is late, because a connector gives up after some tries.
        yield Late(
            f"event {max(indexes)} had come, and nobody went on after it: "
            f"{_last_word(run, exchanges)}"
        )


def _is_lost(run: Evidence) -> bool:
    known = any(frame.writer == "upstream" for frame in run.frames)
    return known and outcome_of(run) in {f"failed ({code})" for code in LOST}


def _last_leg(run: Evidence) -> tuple[list[RawFrame], list[Exchange]]:
    leg = max(frame.leg for frame in run.frames if frame.writer == "upstream")
    exchanges = run.asked[leg - 1] if len(run.asked) >= leg else []
    frames = [frame for frame in run.frames if frame.leg == leg and frame.writer == "upstream"]
    return frames, exchanges


def _last_word(run: Evidence, exchanges: Sequence[Exchange]) -> str:
    last = [event["data"] for event in run.events if type_of(event) in ENDS]
    return f"{last}; {_told(exchanges)}"


def reattached(run: Evidence) -> int:
    """Return the number of legs whose new bytes come from more than one connector process."""
    writers: dict[int, set[int | None]] = {}
    for frame in run.frames:
        if frame.writer == "upstream" and frame.kind in ("bytes", "part"):
            writers.setdefault(frame.leg, set()).add(_pid(frame.connection))
    return sum(len(pids) > 1 for pids in writers.values())


def _views(run: Evidence, harm: Harm) -> Iterator[str]:
    names = types_of(run)
    places = [place for place, name in enumerate(names) if name in ENDS]
    end = (
        places[0] + 1
        if places
        else names.index("lifecycle.paused") + 1
        if "lifecycle.paused" in names and run.plan.decision == "none"
        else len(names)
    )
    whole = run.events[:end]
    for number, view in enumerate(run.views):
        for odd in view.odd:
            yield f"client {number} met {odd}"
        if view.restarts:
            yield f"client {number} was told {view.restarts} times that its events are lost"
        if not view.finished:
            yield Late(f"client {number} did not see the end")
        if len(set(view.cursors)) != len(view.cursors):
            yield f"client {number} was given a cursor twice"
        # Events of automations may follow the pause of a run that nobody decides.
        until = len(whole) if places or not view.finished else max(len(whole), len(view.seen))
        wanted = run.events[:until]
        if view.seen != (wanted if view.finished else wanted[: len(view.seen)]):
            sequences = [event.get("sequence") for event in view.seen]
            yield f"client {number} saw {sequences} of {len(wanted)}"


def _bytes(run: Evidence, harm: Harm) -> Iterator[str]:
    """RAW has only bytes that the server sent, and all of them if the leg reached its end."""
    legs = run.asked
    for leg, connections in run.written.items():
        sent = legs[leg - 1] if len(legs) >= leg else []
        if not _are_prefixes(list(connections.values()), [bytes(each.body) for each in sent]):
            sizes = [len(written) for written in connections.values()]
            yield f"leg {leg}: {sizes} bytes in RAW are not what the server sent: {_told(sent)}"
        ends = [frame for frame in run.frames if frame.leg == leg and frame.kind == "end"]
        if not ends or b'"eof"' not in ends[0].payload:
            continue
        last = list(connections.values())[-1] if connections else b""
        if not sent or last != bytes(sent[-1].body) or sent[-1].ended not in ("whole", "cut"):
            yield f"leg {leg} ended, with {len(last)} bytes of {_told(sent)}"


def _are_prefixes(written: Sequence[bytes], sent: Sequence[bytes]) -> bool:
    """Return whether each item of `written` is the beginning of an item of `sent`, in order."""
    if not written:
        return True
    return any(
        body.startswith(written[0]) and _are_prefixes(written[1:], sent[place + 1 :])
        for place, body in enumerate(sent)
    )


def _told(exchanges: Sequence[Exchange]) -> str:
    return str(
        [
            (each.path.rpartition("/")[2], each.ended, len(each.body), bytes(each.body[-200:]))
            for each in exchanges
        ]
    )


def _once(run: Evidence, harm: Harm) -> Iterator[str]:
    """A start and a decision go upstream at most once."""
    requests = Counter(request for request, _ in run.exchanges)
    for request in ("start", "continue"):
        if requests[request] > 1:
            yield f"{requests[request]} times {request}"
    # A connector that takes over a leg may ask for a run that never began, and gets an error.
    if run.exchanges and run.exchanges[0][0] == "continue":
        yield "a decision was sent about a run that was never begun"
    if run.other_ids - {run.run_id}:
        yield f"its key was given other runs: {run.other_ids}"


def _words(run: Evidence, harm: Harm) -> Iterator[str]:
    """The events have the text and tools of the bytes, which `wire` reads without the product."""
    read = wire.READERS[run.plan.agent]
    told = wire.events(run.events)
    raw = read([list(connections.values()) for _, connections in sorted(run.written.items())])
    sent = read([[bytes(each.body) for each in leg] for leg in run.asked])
    outcome = outcome_of(run)
    if outcome == "cancelled" or is_behind(run):
        # The events lack the bytes after a cancel, or the normalizer has not folded all bytes yet.
        if not _begins(raw, told):
            yield f"the events say {told}, RAW {raw}"
    elif (told.text, told.calls, told.results) != (raw.text, raw.calls, raw.results):
        yield f"the events say {told}, RAW {raw}"
    if run.plan.agent == "resumable":
        # The connector's process ended before it wrote the last bytes. The server sent them again
        # in the next attempt.
        raw = read([list(connections.values())[-1:] for connections in run.written.values()])
        sent = read([[bytes(each.body) for each in leg[-1:]] for leg in run.asked])
    if outcome == "completed":
        if (raw.text, raw.calls, raw.results) != (sent.text, sent.calls, sent.results):
            yield f"RAW says {raw}, the server {sent}"
        if sent.end != ("completed" if run.plan.agent in wire.SAY_THEIR_END else None):
            yield f"it is completed, and the server says {sent.end}"
    elif not _begins(sent, raw):
        yield f"RAW says {raw}, the server {sent}"


def _begins(whole: wire.Said, part: wire.Said) -> bool:
    return (
        whole.text.startswith(part.text)
        and whole.calls[: len(part.calls)] == part.calls
        and part.results <= whole.results
    )


def _content(run: Evidence, harm: Harm) -> Iterator[str]:
    """The events equal those of a fresh fold of RAW, byte for byte."""
    if _hash(run.bodies) == _hash(run.folded):
        return
    if is_behind(run):
        yield Late(f"there are {len(run.bodies)} events of {len(run.folded)} that RAW makes")
        return
    pairs = zip_longest(run.bodies, run.folded, fillvalue=b"nothing")
    number, (stands, made) = next(
        (number, pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]
    )
    yield (
        f"{len(run.bodies)} events, a fold of RAW makes {len(run.folded)}; event {number} is "
        f"{stands.decode()[:SHOWN]}, should be {made.decode()[:SHOWN]}"
    )


def _hash(bodies: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(bodies)).hexdigest()


def _tools(run: Evidence, harm: Harm) -> Iterator[str]:
    """A tool that needs approval runs at most once, and only after an approval."""
    decided = [
        event["data"]["outcome"] for event in run.events if type_of(event) == "approval.decided"
    ]
    outcome = outcome_of(run)
    approved = decided == ["approved"]
    at_least = int(approved and outcome == "completed")
    at_most = int(approved)
    if not at_least <= run.tool_runs <= at_most:
        yield f"its tool ran {run.tool_runs} times; decided: {decided}, outcome: {outcome}"


def _decision(run: Evidence, harm: Harm) -> Iterator[str]:
    """At most one of several decisions wins. A losing decision gets a 409, a 5xx or no answer."""
    outcomes = {"approve": "approved", "reject": "rejected"}
    decided = [
        event["data"]["outcome"] for event in run.events if type_of(event) == "approval.decided"
    ]
    won = [outcomes[answer.asked] for answer in run.decisions if answer.status == 200]
    if len(won) > 1:
        yield f"{len(won)} decisions were told that they won"
    if len(decided) > 1:
        yield f"it was decided {len(decided)} times"
    if won and decided and won != decided:
        yield f"{won} won, and {decided} was done"
    if won and not decided:
        yield (str if has_ended(run) else Late)(f"{won} won, and nothing was done")
    if odd := [a for a in run.decisions if a.status not in (None, 200, 409) and a.status < 500]:
        yield f"a decision was answered {odd}"
    if run.decisions and not won and all(answer.status == 409 for answer in run.decisions):
        yield "every decision was told that another had won"


def _deliveries(run: Evidence, harm: Harm) -> Iterator[str]:
    """Check that each delivery has one outcome, and that ordered rules keep the run's order."""
    if run.requests is not None:
        yield from deliveries.check(run.run_id, run.events, run.requests)


def _pid(connection: str) -> int | None:
    """Return the process id in a connection's name, `<service>-<host>-<pid>-<random>/<n>`.

    Return None if the name has another form.
    """
    parts = connection.partition("/")[0].split("-")
    return int(parts[-2]) if len(parts) > 2 and parts[-2].isdigit() else None


CHECKS: dict[str, Check] = {
    "numbers": _numbers,
    "start": _start,
    "end": _end,
    "outcome": _outcome,
    "reason": _reason,
    "gone on": _gone_on,
    "views": _views,
    "bytes": _bytes,
    "at most once": _once,
    "words": _words,
    "content": _content,
    "tools": _tools,
    "decision": _decision,
    "deliveries": _deliveries,
}
