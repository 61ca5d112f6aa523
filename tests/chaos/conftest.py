"""The agent servers of a long round, which no other test uses and which answer more slowly."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from support.real import servers, upstreams
from support.real.upstreams import Recipe, Upstream

# The answer has 80 pieces of text, 0.1 s apart, so that faults hit it in the middle.
_SLOWLY = {"FAKE_DELAY": "0.1", "FAKE_LONG_N": "80"}


@pytest.fixture(scope="session")
def patient_agno(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """Return the real Agno 3.1.10 AgentOS, whose `long` takes eight seconds."""
    recipe = replace(upstreams.AGNO, env=lambda folder: upstreams.AGNO.env(folder) | _SLOWLY)
    return _own(recipe, tmp_path_factory.mktemp("agno"))


@pytest.fixture(scope="session")
def own_adk(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """Return the real google-adk 2.13.0 server."""
    return _own(upstreams.ADK, tmp_path_factory.mktemp("adk"))


def _own(recipe: Recipe, folder: Path) -> Upstream:
    if not recipe.python.exists():
        pytest.fail(f"no environment for the real {recipe.name} server: run `make upstreams`")
    return upstreams.shared(recipe, servers.SharedRun(folder, os.getpid()))
