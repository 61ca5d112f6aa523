"""The wheels and sdists have all files of the repository's packages, and work without it."""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest
import yaml

from penstock.contract import VERSION
from support.drive.repository import ROOT, files, services, toml
from support.real.up import Up
from support.real.upstreams import ADK, AGNO

MEMBERS = [
    *("shared", "clients/conformance", "clients/python"),
    *(f"services/{name}" for name in services()),
]
JAVASCRIPT = ["javascript", "react", "copilotkit"]
NO_INDEX = ("No matching distribution found", "Connection", "Network is unreachable")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `make dist`'s script; return its folder."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        ["sh", ROOT / "deploy/dist.sh", sys.executable, folder, *MEMBERS],
        cwd=ROOT,
        check=True,
        timeout=50,
    )
    return folder


def package(member: str) -> tuple[str, str, set[str]]:
    """Return the distribution's name and version as in file names, and the files it must have."""
    project = toml(f"{member}/pyproject.toml")
    [name] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    folder = f"{ROOT / member}/"
    inside = [str(path).removeprefix(folder) for path in files() if str(path).startswith(folder)]
    own = {path for path in inside if path.startswith(f"{name}/")}
    distribution = project["project"]["name"].replace("-", "_")
    return distribution, project["project"]["version"], own


@pytest.mark.parametrize("member", MEMBERS)
def test_wheel_and_sdist_have_all_files_of_the_package_and_no_others(
    dist: Path, member: str
) -> None:
    name, version, own = package(member)
    assert any(path.endswith(".py") for path in own)
    with zipfile.ZipFile(dist / f"{name}-{version}-py3-none-any.whl") as wheel:
        shipped = {path for path in wheel.namelist() if ".dist-info/" not in path}
    assert shipped == own
    with tarfile.open(dist / f"{name}-{version}.tar.gz") as sdist:
        source = {path.removeprefix(f"{name}-{version}/") for path in sdist.getnames()}
    assert own <= source
    assert "pyproject.toml" in source


@pytest.mark.parametrize("member", MEMBERS)
def test_wheel_and_sdist_have_the_text_of_the_license(dist: Path, member: str) -> None:
    text = (ROOT / "LICENSE").read_bytes()
    name, version, _ = package(member)
    inside = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(dist / f"{name}-{version}-py3-none-any.whl") as wheel:
        assert wheel.read(f"{inside}/licenses/LICENSE") == text
        metadata = email.message_from_bytes(wheel.read(f"{inside}/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    with tarfile.open(dist / f"{name}-{version}.tar.gz") as sdist:
        shipped = sdist.extractfile(f"{name}-{version}/LICENSE")
        assert shipped is not None
        assert shipped.read() == text


def test_the_wheels_are_of_all_members_and_the_lock_lies_beside_them(dist: Path) -> None:
    assert len(list(dist.glob("*.whl"))) == len(list(dist.glob("*.tar.gz"))) == len(MEMBERS)
    lock = (ROOT / "deploy/requirements.txt").read_text()
    first, rest = (dist / "requirements.txt").read_text().split("\n", 1)
    assert first == "--find-links ."
    wheels = rest.removesuffix(lock)
    assert rest != wheels
    hashes = {hashlib.sha256(each.read_bytes()).hexdigest() for each in dist.glob("*.whl")}
    assert set(re.findall(r"--hash=sha256:(\w+)", wheels)) == hashes
    pins = re.findall(r"^(\S+)==(\S+) ", wheels, re.MULTILINE)
    assert {name for name, _ in pins} == {
        name.replace("_", "-") for name, _, _ in map(package, MEMBERS)
    }


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on the PATH")
def test_the_packages_of_javascript_have_all_files_that_they_name(dist: Path) -> None:
    for name in JAVASCRIPT:
        described = json.loads((ROOT / "clients" / name / "package.json").read_text())
        archive = dist / f"penstock-{described['name'].split('/')[1]}-{described['version']}.tgz"
        with tarfile.open(archive) as packed:
            inside = {each.removeprefix("package/") for each in packed.getnames()}
        assert inside >= {*described["files"], "package.json", "LICENSE", "README.md"}


def test_all_members_and_the_chart_have_one_version() -> None:
    versions = {package(member)[1] for member in MEMBERS}
    for name in JAVASCRIPT:
        versions.add(json.loads((ROOT / "clients" / name / "package.json").read_text())["version"])
    chart = yaml.safe_load((ROOT / "deploy/helm/penstock/Chart.yaml").read_text())
    assert versions == {chart["version"]} == {chart["appVersion"]}
    [version] = versions
    assert version.startswith(f"{VERSION}.")
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_make_dist_builds_every_member() -> None:
    listed = subprocess.run(
        ["make", "--dry-run", "--always-make", "dist"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    [line] = [line for line in listed.splitlines() if "deploy/dist.sh" in line]
    assert set(line.split()) >= set(MEMBERS)


# The tests from here on are `make dist-check`. They install from the package index for a minute.


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` of an environment with only the lock's packages and the wheels."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-input"]
    locked = subprocess.run(
        [*pip, "--no-deps", "--require-hashes", "-r", dist / "requirements.txt"],
        capture_output=True,
        text=True,
        check=False,
    )
    if locked.returncode and any(word in locked.stderr for word in NO_INDEX):
        reason = f"no package index is reachable: {locked.stderr.splitlines()[-1]}"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    assert locked.returncode == 0, locked.stderr
    return folder / "bin"


@pytest.mark.dist
@pytest.mark.real
@pytest.mark.timeout(900)
def test_from_the_wheels_alone_penstock_up_and_the_terminal_work(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for recipe in (AGNO, ADK):
        if not recipe.python.exists():
            pytest.fail(f"no environment for the demo's {recipe.name} server: `make upstreams`")
        monkeypatch.setenv(f"PENSTOCK_DEMO_{recipe.name.upper()}_PYTHON", str(recipe.python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)

    def said(*command: str | Path) -> str:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    python = installed / "python"
    said(python, "-m", "pip", "check")
    where = said(
        python, "-c", "import penstock, penstock_cli as c; print(penstock.__file__, c.__file__)"
    )
    assert all(path.startswith(str(installed.parent)) for path in where.split())
    version = toml("services/cli/pyproject.toml")["project"]["version"]
    assert said(installed / "penstock", "--version") == f"penstock {version}\n"

    up = Up(tmp_path, "--demo", program=[installed / "penstock"])
    up.start()
    try:
        for agent in ("assistant", "vana"):
            lines = said(
                *(installed / "penstock", "run", "What is the weather in Rome?"),
                *("--agent", agent, "--url", up.url, "--json"),
            ).splitlines()
            last = json.loads(lines[-1])
            assert last["event"]["action"] == "completed"
            assert last["data"]["summary"].endswith("It is 21 degrees and clear in Rome.")
        agents = said(installed / "penstock", "agents", "--url", up.url, "--json").splitlines()
        assert {json.loads(line)["id"] for line in agents} >= {"assistant", "vana"}
        with httpx.Client(base_url=up.url, trust_env=False, timeout=30) as client:
            for path in ("/", "/console/runs", "/docs", "/openapi.json"):
                assert client.get(path).status_code == 200, path
    finally:
        assert up.signal(signal.SIGTERM) == 0
