"""Plays the rounds: start runs, kill the server, start it again, and let the clients go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import httpx

from penstock_conformance.agents.script import WORDS
from penstock_conformance.chaos.counter import ANSWER_AFTER_S, Counter, Effect
from penstock_conformance.chaos.drive import Client, client_of
from penstock_conformance.chaos.judge import Figures, Round, judge
from penstock_conformance.chaos.plan import Moment, moments
from penstock_conformance.chaos.protocols.base import Protocol, Run
from penstock_conformance.chaos.server import Server
from penstock_conformance.dialect import NotShown

COUNTER_VARIABLE: Final = "PENSTOCK_CHAOS_COUNTER"  # that agents/script.py reads
_CALM_S: Final = 60.0  # that an undisturbed run may take


@dataclass(frozen=True, slots=True)
class Options:
    """What is killed, how often, and who looks at it."""

    command: str
    url: str  # that the clients use
    probe: str  # that answers when the server is ready
    protocol: Protocol
    seed: int
    rounds: int = 10
    runs: int = 4  # of each round
    calls: int = 3  # and effects, of each run
    patience_s: float = 20.0  # that a run may take after the restart
    start_s: float = 90.0  # that a start of the server may take
    counter_port: int = 0


@dataclass(slots=True)
class Result:
    """What was seen. `calm_s` is how long an undisturbed run took."""

    calls: int
    calm_s: float
    moments: Sequence[Moment]
    rounds: list[Round] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    @property
    def figures(self) -> Figures:
        return judge(self.rounds, self.effects, calls=self.calls, words=(self.calls + 1) * WORDS)


async def play(options: Options, folder: Path, say: Callable[[str], None]) -> Result:
    """Play all rounds. `folder` gets the server's log, and the frames of each round.

    Raises:
        ServerFailed, NotShown, NotUnderstood: there is no result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    async with Counter(options.counter_port) as counter, client_of(options.url) as http:
        env = {COUNTER_VARIABLE: counter.url}
        log = folder / "server.log"
        async with Server(options.command, options.probe, log=log, env=env) as server:
            return await _play(options, folder, say, _Stage(options, counter, http, server))


@dataclass(frozen=True, slots=True)
class _Stage:
    options: Options
    counter: Counter
    http: httpx.AsyncClient
    server: Server
    # A server may go on with runs of an earlier call of this command, so names are used once.
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:4])

    def client(self, name: str, log: _Frames) -> Client:
        run = Run(
            name=f"{self.name}-{name}",
            message=f"chaos {self.name}-{name} {self.options.calls}",
            session=str(uuid.uuid4()),
            key=str(uuid.uuid4()),
        )
        return Client(self.http, self.options.protocol, run, log)


async def _play(
    options: Options, folder: Path, say: Callable[[str], None], stage: _Stage
) -> Result:
    start_s = await stage.server.start(options.start_s)
    say(f"the server answered after {start_s:.1f} s")
    with _Frames(folder / "calm.jsonl") as log:
        # The first run of a process takes longer than later ones.
        calm_s = min([await _calm(stage, f"calm-{n}", log) for n in (1, 2)])
    say(f"an undisturbed run took {calm_s:.1f} s")
    planned = moments(
        options.seed,
        options.rounds,
        stagger_s=calm_s / options.runs,
        calls=options.calls,
        answer_after_s=ANSWER_AFTER_S,
    )
    result = Result(options.calls, calm_s, planned)
    try:
        for number, moment in enumerate(planned, 1):
            with _Frames(folder / f"round-{number:02}.jsonl") as log:
                played = await _round(stage, number, moment, calm_s, log)
            result.rounds.append(played)
            ends = [seen.end or "no end" for seen in played.runs]
            say(f"round {number}: killed {moment}; {', '.join(ends)}")
    except asyncio.CancelledError:  # what asyncio makes of Ctrl-C
        if not result.rounds:
            raise
        say(f"stopped in round {len(result.rounds) + 1} of {options.rounds}")
    result.effects = list(stage.counter.effects)
    return result


async def _calm(stage: _Stage, name: str, log: _Frames) -> float:
    """Play one run without a kill, and return how long it took. Raises NotShown."""
    client = stage.client(name, log)
    began_s = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CALM_S):
            await client.follow()
    took_s = time.monotonic() - began_s
    await client.reread()
    seen = client.seen
    calls = stage.options.calls
    n_words = (calls + 1) * WORDS
    effects = [effect.call for effect in stage.counter.effects if effect.run == seen.run]
    wrong = [
        (seen.end != "completed", f"its end was: {seen.end}"),
        (seen.words != list(range(n_words)), f"its words were {seen.words}"),
        (effects != list(range(calls)), f"its effects were {effects}"),
    ]
    complaints = [text for is_wrong, text in wrong if is_wrong]
    if complaints:
        expected = f"an undisturbed run must complete with the words 0 to {n_words - 1}, and with "
        expected += f"{calls} effects, each once, but "
        raise NotShown(expected + "; ".join(complaints))
    return took_s


async def _round(stage: _Stage, number: int, moment: Moment, calm_s: float, log: _Frames) -> Round:
    clients = [stage.client(f"r{number}-{n}", log) for n in range(1, stage.options.runs + 1)]
    effects: asyncio.Queue[Effect] = asyncio.Queue()

    def note(effect: Effect) -> None:
        log("effect", run=effect.run, call=effect.call)
        effects.put_nowait(effect)

    stage.counter.listener = note
    following: list[asyncio.Task[None]] = []
    try:
        for client in clients:
            if following:
                await asyncio.sleep(calm_s / len(clients))
            following.append(asyncio.create_task(client.follow()))
        await _await(moment, effects, limit_s=2 * calm_s)
        killed_s = time.monotonic()
        log("kill", moment=str(moment))
        for client in clients:
            client.killed_s = killed_s
        await stage.server.kill()
        await stage.server.start(stage.options.start_s)
        answered_s = time.monotonic()
        log("answers again")
        done, _ = await asyncio.wait(following, timeout=stage.options.patience_s)
        for task in done:
            task.result()  # raises what the task has raised
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    await asyncio.gather(*(client.reread() for client in clients))
    return Round(str(moment), killed_s, answered_s, [client.seen for client in clients])


async def _await(moment: Moment, effects: asyncio.Queue[Effect], limit_s: float) -> None:
    """Wait for the moment. If its effect does not come, the server is killed all the same."""
    while not effects.empty():  # those before the last start
        effects.get_nowait()
    try:
        async with asyncio.timeout(limit_s):
            for _ in range(moment.effect or 0):
                await effects.get()
    except TimeoutError:
        return
    await asyncio.sleep(moment.delay_s)


class _Frames:
    """Writes what happened in a round as JSON lines, for whoever checks a result by hand."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = time.monotonic()
        self._file: TextIO | None = None

    def __enter__(self) -> _Frames:
        self._file = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def __call__(self, what: str, **fields: Any) -> None:
        if self._file is None or self._file.closed:
            return  # a late effect of an earlier round
        line = {"s": round(time.monotonic() - self._began_s, 3), "what": what, **fields}
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
