"""The real AG-UI client in several versions as a checker: one node process for many streams.

`make agui-client` installs it. If node is missing, the tests that need it are skipped with a
reason; in CI they fail.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pytest

from support.drive.repository import ROOT

SCRIPTS = ROOT / "tests" / "agui-client"
INSTALLED = ROOT / ".penstock" / "agui-client"
VERSIONS = {"1.0.0": "v1", "0.0.59": "v059"}


@dataclass(frozen=True)
class Verdict:
    """The client's result for a stream."""

    errors: list[str]
    warnings: list[str]
    terminals: list[str]  # of each run: finished, success, interrupt, cancelled, error
    events: int
    messages: list[dict[str, Any]]
    state: Any
    pendingInterrupts: list[dict[str, Any]] | None  # noqa: N815 - the client's own name

    @property
    def accepted(self) -> bool:
        """Whether there is no error and a terminal event.

        A stream without a terminal event resolves as a success without any result.
        """
        return not self.errors and bool(self.terminals)


@dataclass(frozen=True)
class Client:
    """A running checker."""

    version: str
    stdin: IO[str]
    stdout: IO[str]

    def check(
        self, body: bytes, *, input: dict[str, Any] | None = None, chunk_bytes: int = 0
    ) -> Verdict:
        """Return the verdict on one `text/event-stream` body.

        `input` is the client's state before the stream.
        """
        case = {"body": body.decode(), "input": input or {}, "chunk": chunk_bytes}
        self.stdin.write(json.dumps(case) + "\n")
        self.stdin.flush()
        return Verdict(**json.loads(self.stdout.readline()))


def _installed(version: str) -> tuple[str, Path]:
    """Return the paths of node and of the client's folder."""
    folder = INSTALLED / VERSIONS[version]
    node = shutil.which("node")
    if node is None or not (folder / "node_modules").is_dir():
        missing = "node is not installed" if node is None else "`make agui-client` was not run"
        message = f"the real AG-UI client {version} cannot check: {missing}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return node, folder


@contextmanager
def running(version: str) -> Iterator[Client]:
    """Run the client of this version. If it cannot run, skip the test, or fail it in CI."""
    node, folder = _installed(version)
    process = subprocess.Popen(
        [node, str(SCRIPTS / "check.mjs"), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Client(version, process.stdin, process.stdout)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(timeout=10)


_Visitor = subprocess.Popen[str]

# Processes of verify.mjs that wait for the next visit, by the client's version. Each process takes
# 0.3 s of CPU to load the client, so it serves one visit after another until this process ends.
_idle: dict[str, list[_Visitor]] = {version: [] for version in VERSIONS}


@atexit.register
def _end_idle() -> None:
    for visitor in chain.from_iterable(_idle.values()):
        _end(visitor)


def _end(visitor: _Visitor) -> None:
    visitor.kill()
    visitor.communicate()


def _visitor(version: str) -> _Visitor:
    """Return a process that serves no other visit."""
    node, _ = _installed(version)
    if _idle[version]:
        return _idle[version].pop()
    return subprocess.Popen(
        [node, str(SCRIPTS / "verify.mjs"), "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def _serve(visitor: _Visitor, arguments: list[str]) -> str:
    assert visitor.stdin is not None
    assert visitor.stdout is not None
    visitor.stdin.write(json.dumps(arguments) + "\n")
    visitor.stdin.flush()
    return visitor.stdout.readline()


async def visit(
    version: str,
    url: str,
    asked: dict[str, Any],
    folder: Path,
    *options: str,
    strict: bool = True,
) -> dict[str, Any]:
    """Return the report of this client version about one request to a live server.

    `options` are those of verify.mjs. If the client cannot run, skip the test, or fail it in CI.
    """
    _, package = _installed(version)
    given = folder / f"{uuid.uuid4().hex}.json"
    given.write_text(json.dumps(asked))
    arguments = [url, "--pkg", str(package), "--input", str(given), *options]
    visitor = _visitor(version)
    try:
        line = await asyncio.to_thread(
            _serve, visitor, [*arguments, *(["--strict"] if strict else [])]
        )
        report: dict[str, Any] = json.loads(line)
    except BaseException:
        # The process may be in the middle of this visit, so it serves no other one.
        _end(visitor)
        raise
    _idle[version].append(visitor)
    return report
