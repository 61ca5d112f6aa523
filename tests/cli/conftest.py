"""Fixtures that the tests of the command line share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.real.up import Up
from support.real.upstreams import ADK, AGNO


@pytest.fixture
def real_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the demo use the environments of the other tests' agent servers."""
    for recipe in (AGNO, ADK):
        if not recipe.python.exists():
            reason = f"no environment for the real {recipe.name} server: run `make upstreams`"
            pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
        monkeypatch.setenv(f"PENSTOCK_DEMO_{recipe.name.upper()}_PYTHON", str(recipe.python))


@pytest.fixture
def make_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Return a function that makes an `Up` with these options; kill its process after the test."""
    made: list[Up] = []

    def make(*options: str, **more: Any) -> Up:
        made.append(Up(tmp_path, *options, **more))
        return made[-1]

    yield make
    for up in made:
        if up.process is not None and up.process.poll() is None:
            up.signal(signal.SIGKILL)
