"""The programs of consuming.md run unchanged, under the reader's permissions."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.bus import Message, sealing
from penstock.contract.asyncapi import headers
from penstock.events import Event, subject_of
from penstock.events.examples import example
from penstock.events.llm import ToolCall
from penstock.events.note import RUN_ID
from penstock.subscribe import Nats, Subscriber
from support.drive.contract import CONTRACT, block, section
from support.drive.waiting import eventually
from support.real import node

from .conftest import DURABLE, FUTURE, PASSWORDS, READER, Guarded

# The lines that the programs print for the events that match the document's durable.
PRINTED = [
    f"{RUN_ID}.7 llm.tool_call delete_document",
    f"{RUN_ID}.13 llm.tool_result",
    f"{RUN_ID}.8 approval.requested",
    f"{RUN_ID}.10 approval.decided",
    f"{RUN_ID}.10 approval.escalated",
    f"{RUN_ID}.10 approval.reminded",
    f"{RUN_ID}.10 approval.remarked",
    f"{RUN_ID}.10 approval.expired",
    f"{RUN_ID}.17 approval.withdrawn",
    f"{RUN_ID}.99 approval.delegated",
]


@asynccontextmanager
async def running(
    command: Sequence[str | Path], guarded: Guarded, folder: Path
) -> AsyncIterator[asyncio.StreamReader]:
    """Run the reader's program; yield its output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, "NATS_URL": guarded.url},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read(output: asyncio.StreamReader, lines: int) -> list[str]:
    """Return this many further lines about events, without the log lines that FastStream prints."""
    found: list[str] = []
    # If a message comes when a pull request expires, the server delivers the message again after
    # the durable's ack_wait, 30 s.
    async with asyncio.timeout(45):
        while len(found) < lines:
            line = (await output.readline()).decode()
            assert line, f"the program has ended after {found}"
            if line.startswith(RUN_ID):
                found.append(line.rstrip("\n"))
    return found


async def is_acknowledged(guarded: Guarded) -> bool:
    info = await guarded.bus.jetstream.nats.consumer_info("EVENTS", DURABLE)
    return (info.num_ack_pending, info.num_pending) == (0, 0)


async def check(
    command: Sequence[str | Path], guarded: Guarded, folder: Path, *, killed: bool = False
) -> None:
    """Check that the program prints all stored events, then a new event, and acknowledges each; and
    that it goes on at its place when it is started again. With `killed`, it is also killed while it
    has events that it has not acknowledged."""
    lines: list[str] = []
    if killed:
        async with running(command, guarded, folder) as output:
            lines += await read(output, 1)
        printed = (await output.read()).decode().splitlines()
        lines += [line for line in printed if line.startswith(RUN_ID)]
    large = FUTURE.model_copy(update={"sequence": 100})
    async with running(command, guarded, folder) as output:
        # The order is not checked: a redelivered message comes after newer ones.
        while len({*lines}) < len(PRINTED):
            lines += await read(output, 1)
        assert sorted({*lines} if killed else lines) == sorted(PRINTED)
        await eventually(lambda: is_acknowledged(guarded), what="every event acknowledged")
        await guarded.bus.jetstream.nats.publish(
            subject_of(large),
            f'{{"penstock_object":"{RUN_ID}.100"}}'.encode(),
            headers={"ce-id": f"{RUN_ID}.100"},
        )
        assert await read(output, 1) == [f"{RUN_ID}.100 is large"]
        await eventually(lambda: is_acknowledged(guarded), what="every event acknowledged")
    await guarded.publish(FUTURE.model_copy(update={"sequence": 101}))
    async with running(command, guarded, folder) as output:
        assert await read(output, 1) == [f"{RUN_ID}.101 approval.delegated"]
        await guarded.bus.publisher.publish(sealed(example("llm.tool_call"), 102))
        assert await read(output, 1) == [f"{RUN_ID}.102 llm.tool_call is sealed"]
        await eventually(lambda: is_acknowledged(guarded), what="every event acknowledged")


def sealed(event: Event, sequence: int) -> Message:
    """Return the event as a sealed installation stores it."""
    event = event.model_copy(update={"sequence": sequence, "session_id": "s", "leg": 1})
    subject = subject_of(event)
    place = sealing.place_of(subject, b"")
    assert place is not None
    key = sealing.RunKey(b"k" * sealing.KEY_BYTES)
    return sealing.sealed_message(key, place, Message(subject, event.dump(), headers(event)))


async def test_the_python_program_reads_every_event_of_its_durable(
    guarded: Guarded, stored: list[Event], tmp_path: Path
) -> None:
    program = tmp_path / "reader.py"
    program.write_text(block("Python", "python"))
    await check([sys.executable, program], guarded, tmp_path)


async def test_the_faststream_program_reads_every_event_of_its_durable(
    guarded: Guarded, stored: list[Event], tmp_path: Path
) -> None:
    program = tmp_path / "reader.py"
    program.write_text(block("FastStream", "python"))
    await check([sys.executable, program], guarded, tmp_path)


async def test_the_faststream_program_is_given_again_what_its_handler_failed_at(
    guarded: Guarded, stored: list[Event], tmp_path: Path
) -> None:
    program = tmp_path / "reader.py"
    given = '    """Yours. It may see the same `event_id` again."""\n'
    fails = "    if not failed:\n        failed.append(event_id)\n        raise ValueError\n"
    code = block("FastStream", "python").replace(given, given + fails)
    program.write_text(code.replace("app = FastStream", "failed: list[str] = []\napp = FastStream"))
    async with running([sys.executable, program], guarded, tmp_path) as output:
        assert sorted(await read(output, len(PRINTED))) == sorted(PRINTED)
        await eventually(lambda: is_acknowledged(guarded), what="every event acknowledged")


@pytest.mark.chaos
async def test_the_typescript_program_reads_every_event_of_its_durable(
    guarded: Guarded, stored: list[Event], tmp_path: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(node.packages("contract"))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(CONTRACT / "penstock.d.ts", tmp_path)
    (tmp_path / "reader.ts").write_text(block("TypeScript", "ts"))
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"]
    options.append("--skipLibCheck")  # it takes seconds; test_typescript.py checks the declarations
    built = node.run("node_modules/typescript/bin/tsc", *options, "reader.ts", cwd=tmp_path)
    assert built.stdout == ""
    await check(["node", "reader.js"], guarded, tmp_path, killed=True)


@pytest.mark.chaos  # a first build takes half a minute
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
async def test_the_go_program_reads_every_event_of_its_durable(
    guarded: Guarded, stored: list[Event], tmp_path: Path
) -> None:
    (tmp_path / "main.go").write_text(block("Go", "go"))
    *steps, _ = [step.split() for step in re.findall("`(.+?)`", section("Go").split("```")[0])]
    for step in [*steps, ["go", "vet", "."], ["go", "build", "-o", "reader", "."]]:
        await asyncio.to_thread(subprocess.run, step, cwd=tmp_path, check=True)
    await check([tmp_path / "reader"], guarded, tmp_path, killed=True)


async def test_typed_subscribers_work_under_the_permissions_of_the_document(
    guarded: Guarded, stored: list[Event]
) -> None:
    nats = Nats(guarded.url, user=READER, password=PASSWORDS["REPORTING_NATS_PASSWORD"])
    subscriber = Subscriber(DURABLE, nats)
    seen: list[str] = []

    @subscriber.on()
    async def tool_called(call: ToolCall) -> None:
        seen.append(call.tool)

    @subscriber.on("approval.*")
    async def approvals(event: Event) -> None:
        seen.append(event.type)

    await subscriber.broker.start()
    try:
        await eventually(lambda: is_acknowledged(guarded), what="every event acknowledged")
    finally:
        await subscriber.broker.stop()
    assert sorted(seen) == [
        "approval.decided",
        "approval.delegated",
        "approval.escalated",
        "approval.expired",
        "approval.remarked",
        "approval.reminded",
        "approval.requested",
        "approval.withdrawn",
        "delete_document",
    ]
