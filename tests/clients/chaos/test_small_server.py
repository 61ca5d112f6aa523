"""`chaos` finds what a small server does wrong on purpose, and nothing in the one that does not."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from penstock_conformance.__main__ import main
from penstock_conformance.chaos.command import STOPPED
from penstock_conformance.chaos.drive import NotUnderstood
from penstock_conformance.chaos.judge import Figures
from penstock_conformance.chaos.protocols.penstock import Penstock
from penstock_conformance.chaos.rounds import COUNTER_VARIABLE, Options, play
from penstock_conformance.chaos.server import Server, ServerFailed
from penstock_conformance.dialect import NotShown
from support.drive.waiting import wait_for
from support.real.ports import free_port

SERVER = Path(__file__).with_name("small_server.py")
# With this seed, the second kill is before the server has the answer of an effect.
SEED = 4

# What each fault of the server must show. Runs without a call are never failed by a kill, so they
# show what happens to words.
OF_EFFECTS = {
    "none": set[str](),
    "doubles": {"effects_twice"},
    "pretends": {"effects_never_but_completed"},
}
OF_WORDS = {
    "loses": {"words_lost"},
    "repeats": {"words_repeated"},
    "endless": {"endless"},
    "has no memory": {"unknown"},
}
SHOWS = OF_EFFECTS | OF_WORDS
COUNTS = {"words_gone"}.union(*SHOWS.values())


def options(folder: Path, fault: str, seed: int = SEED) -> Options:
    port = free_port()
    data = folder / "data"
    data.mkdir(parents=True)
    command = f"exec {sys.executable} -I -S {SERVER} {port} {shlex.quote(str(data))} '{fault}'"
    url = f"http://127.0.0.1:{port}"
    calls, rounds = (3, 2) if fault in OF_EFFECTS else (0, 1)
    return Options(
        command,
        url,
        url,
        Penstock("chaos"),
        seed,
        rounds=rounds,
        calls=calls,
        patience_s=2 if fault in ("endless", "has no memory") else 20,
        start_s=20,
    )


def found(figures: Figures) -> set[str]:
    return {name for name in COUNTS if getattr(figures, name)}


async def figures(folder: Path, fault: str) -> Figures:
    """Play until a kill comes where the fault shows. On a busy machine, the kill of one seed may
    come before or after it."""
    for seed in range(SEED, SEED + 4):
        place = folder / str(seed)
        played = (await play(options(place, fault, seed), place, lambda _: None)).figures
        is_shown = SHOWS[fault] <= found(played) if SHOWS[fault] else bool(played.failed)
        if is_shown or (fault == "none" and played.faults):
            break
    return played


async def test_each_fault_is_found_and_none_where_there_is_none(tmp_path: Path) -> None:
    played = await asyncio.gather(*(figures(tmp_path / fault, fault) for fault in SHOWS))
    shown = dict(zip(SHOWS, played, strict=True))
    assert [fault for fault in SHOWS if not SHOWS[fault] <= found(shown[fault])] == []
    whole = shown["none"]
    assert whole.faults == []
    assert whole.failed, "no kill came within a call, so the seeds no longer show anything"
    assert whole.effects_once + whole.effects_never == whole.effects_planned
    assert len(whole.next_s) == whole.met


@pytest.mark.parametrize(
    ("fault", "error"),
    [("dies", ServerFailed), ("babbles", NotUnderstood), ("mumbles", NotShown)],
)
async def test_what_cannot_be_shown_is_an_error_and_leaves_no_process(
    tmp_path: Path, fault: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await play(options(tmp_path, fault), tmp_path, lambda _: None)
    wait_for(lambda: not processes(tmp_path), 5, "the end of the server")


async def test_another_server_in_its_place_is_not_taken_for_the_one_that_is_killed(
    tmp_path: Path,
) -> None:
    mine, env = options(tmp_path, "none"), {COUNTER_VARIABLE: "http://127.0.0.1:9"}
    async with Server(mine.command, mine.probe, log=tmp_path / "log", env=env) as other:
        await other.start(20)
        with pytest.raises(ServerFailed, match="before the server was started"):
            await play(mine, tmp_path, lambda _: None)


def test_the_command_says_what_it_found_and_how_to_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forgets = options(tmp_path, "forgets")
    report, page = tmp_path / "chaos.json", tmp_path / "chaos.html"
    command = ["chaos", "--command", forgets.command, "--url", forgets.url]
    command += ["--protocol", "penstock", "--rounds", "1", "--calls", "0", "--seed", str(SEED)]
    command += ["--frames", str(tmp_path), "--json", str(report), "--html", str(page)]
    assert main(command) == 1
    assert f"again    penstock-conformance {shlex.join(command)}" in capsys.readouterr().out
    figures = json.loads(report.read_text("utf-8"))
    # On a busy machine, a run may not have shown a word when the server is killed.
    assert 1 <= figures["words_gone"] == len(figures["gone_names"]) <= 4
    assert figures["faults"][0] in page.read_text("utf-8")
    lines = (tmp_path / "round-01.jsonl").read_text("utf-8").splitlines()
    assert {"request", "frame", "kill", "answers again"} <= {
        json.loads(each)["what"] for each in lines
    }


@pytest.mark.chaos
async def test_ctrl_c_reports_the_rounds_that_were_played(tmp_path: Path) -> None:
    whole, report = options(tmp_path, "none"), tmp_path / "chaos.json"
    command = [sys.executable, "-m", "penstock_conformance", "chaos", "--command", whole.command]
    command += ["--url", whole.url, "--protocol", "penstock", "--calls", "0", "--seed", str(SEED)]
    command += ["--frames", str(tmp_path), "--json", str(report), "--rounds", "50"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            while b"round 1" not in await process.stderr.readline():
                pass
        process.send_signal(signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == STOPPED
    assert 1 <= json.loads(report.read_text("utf-8"))["rounds"] < 50
    assert b"again    penstock-conformance chaos" in out
    wait_for(lambda: not processes(tmp_path), 5, "the end of the server")


def processes(folder: Path) -> list[int]:
    """Return the processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in entry.read_bytes() and entry.parent.name != str(os.getpid()):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found
