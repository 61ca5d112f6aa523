"""penstock-client, installed as its README says, in each Python that it is for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock_client.testing import ReplayServer
from support.drive.repository import ROOT, toml
from support.recorded.asking import ASKING

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PROGRAM = """
import asyncio, json, sys
from penstock_client import AsyncClient, Client, Notice

def by_threads(url):
    with Client(url) as client:
        seen = []
        for event in client.run("assistant", "hi"):
            assert not isinstance(event, Notice)
            seen.append(event.sequence)
            if event.type == "lifecycle.paused":
                client.decide(client.approval(event.data["approval_id"]), True)
        return seen

async def by_asyncio(url):
    async with AsyncClient(url) as client:
        seen = []
        async for event in client.run("assistant", "hi"):
            assert not isinstance(event, Notice)
            seen.append(event.sequence)
            if event.type == "lifecycle.paused":
                await client.decide(await client.approval(event.data["approval_id"]), True)
        return seen

url, how = sys.argv[1:]
seen = by_threads(url) if how == "threads" else asyncio.run(by_asyncio(url))
print(json.dumps(["%d.%d" % sys.version_info[:2], seen]))
"""


def interpreter(version: str) -> str:
    """Return a Python of this version from the PATH, uv or pyenv."""
    installed = (f".local/share/uv/python/cpython-{version}*", f".pyenv/versions/{version}*")
    found = [shutil.which(f"python{version}")]
    found += [str(each / "bin/python3") for name in installed for each in Path.home().glob(name)]
    for each in found:
        # A name may be there and not run: a version manager's shim.
        if each and not subprocess.run([each, "-c", "import ssl"], check=False).returncode:
            return each
    pytest.skip(f"there is no Python {version} here")


@pytest.fixture(scope="module", params=VERSIONS)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the client and what it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([interpreter(request.param), "-m", "venv", folder], check=True)
    install = [str(folder / "bin/pip"), "install", "-q", "./shared", "./clients/python"]
    subprocess.run(install, cwd=ROOT, check=True)
    return folder / "bin/python"


@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_a_run_is_whole_though_the_connection_is_cut_after_each_frame(
    python: Path,
    request: pytest.FixtureRequest,
    penstock_replay: ReplayServer,
    tmp_path: Path,
    how: str,
) -> None:
    penstock_replay.add(ASKING)
    penstock_replay.cut_after = [1] * len(ASKING)
    done = subprocess.run(
        [python, "-c", PROGRAM, penstock_replay.url, how],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert not done.returncode, done.stderr
    version = request.node.callspec.params["python"]
    assert json.loads(done.stdout) == [version, [*range(1, len(ASKING) + 1)]]
    assert not penstock_replay.cut_after


def test_no_python_that_the_package_is_for_is_missing_from_the_table() -> None:
    first = toml("clients/python/pyproject.toml")["project"]["requires-python"]
    assert first == f">={VERSIONS[0]}"
