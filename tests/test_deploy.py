"""The locks, the images and the Compose file agree with the code."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
import yaml

from penstock.bus.admin.permissions import NAMES, OPERATOR, password_variable
from penstock.settings import load_config
from penstock_cli.demo import RECIPES, WORKFLOWS, switch_on_workflows
from support.drive.repository import ROOT, services, toml

LOCKS = [
    "deploy/requirements.txt",
    "deploy/requirements-dev.txt",
    "deploy/requirements-build.txt",
    "deploy/requirements-run.txt",
    "deploy/upstreams/agno.txt",
    "deploy/upstreams/adk.txt",
    "deploy/upstreams/langgraph.txt",
    "deploy/upstreams/pydantic_ai.txt",
    "deploy/upstreams/agno_agui.txt",
    "deploy/upstreams/bench_naive.txt",
    "deploy/upstreams/agno_older.txt",
    "deploy/upstreams/adk_older.txt",
    "deploy/upstreams/a2a_older.txt",
    "deploy/upstreams/langgraph_dev.txt",
    "deploy/upstreams/aegra.txt",
]
LAYERS = ("", "-run", "-dev")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
# Each stage's name and its text.
STAGES = {
    block.split("\n", 1)[0].split(" AS ")[1]: block
    for block in re.split(r"^(?=FROM )", DOCKERFILE, flags=re.MULTILINE)[1:]
}
SHIPPED = sorted(set(STAGES) - {"build", "python", "runtime"})


def pins(path: Path) -> dict[str, str]:
    """Return name -> version, as a lock or its handwritten list pins them."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[._]", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("builder", ["docker", "buildah"])
def test_every_image_of_a_service_is_built_and_pushed(tmp_path: Path, builder: str) -> None:
    calls = tmp_path / "calls"
    program = tmp_path / builder
    program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n')
    program.chmod(0o755)
    if builder == "buildah":  # a client without a daemon
        (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "docker").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = str(ROOT / "deploy/images.sh")
    subprocess.run(
        [script, "registry.example"], env=environment, check=True, capture_output=True, timeout=20
    )
    said, version = calls.read_text(), toml("shared/pyproject.toml")["project"]["version"]
    for target in ("penstock", *services()):
        if target == "cli":  # is in the image `penstock`
            continue
        name = target if target == "penstock" else f"penstock-{target}"
        image = f"registry.example/{name}:{version}"
        assert f"--target {target} -t {image} .\npush {image}\n" in said


def test_without_a_builder_images_are_left_out_but_no_push_is_forgotten(tmp_path: Path) -> None:
    for program in ("sh", "dirname"):
        (tmp_path / program).symlink_to(f"/bin/{program}")
    for arguments, code in (([], 0), (["registry.example"], 1)):
        done = subprocess.run(
            ["/bin/sh", ROOT / "deploy/images.sh", *arguments],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        assert done.returncode == code
        assert "neither a Docker daemon nor buildah" in done.stderr


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_by_hash_and_names_no_address(lock: str) -> None:
    lines = [line for line in (ROOT / lock).read_text().splitlines() if line[:1] not in {"#", ""}]
    name = r"[a-z0-9._-]+(\[[a-z0-9,_-]+\])?"
    for line in lines:
        assert re.match(rf"{name}==\S+( ; .+)? \\$|    --hash=sha256:[0-9a-f]{{64}}|    #", line)
    heads = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    assert all("--hash=" in lines[number + 1] for number in heads)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_what_its_list_asks_for(lock: str) -> None:
    path = ROOT / lock
    assert pins(path.with_suffix(".in")).items() <= pins(path).items()


def test_images_are_built_with_the_build_backend_that_is_tested() -> None:
    tested, builds = (pins(ROOT / f"deploy/requirements-{name}.txt") for name in ("dev", "build"))
    assert builds["hatchling"] == tested["hatchling"]
    assert all(tested[name] == builds[name] for name in builds.keys() & tested.keys())


def test_what_is_tested_is_what_ships_and_what_make_run_installs() -> None:
    ships, runs, tested = (pins(ROOT / f"deploy/requirements{part}.txt") for part in LAYERS)
    assert ships.items() <= runs.items() <= tested.items()


def test_make_run_installs_no_more_than_what_runs_and_what_installs_this_workspace() -> None:
    ships, runs, _ = (pins(ROOT / f"deploy/requirements{part}.txt") for part in LAYERS)
    backend = {"hatchling", "editables"} | {
        "packaging",
        "pathspec",
        "pluggy",
        "tomlkit",
        "trove-classifiers",
    }
    assert runs.keys() - ships.keys() <= backend


def test_the_compose_file_fits_the_schema_of_the_compose_specification() -> None:
    check = subprocess.run(
        [
            Path(sys.executable).with_name("check-jsonschema"),
            "--builtin-schema",
            "vendor.compose-spec",
            ROOT / "docker-compose.yml",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_compose_runs_every_service_with_its_own_image_and_command() -> None:
    for name in set(services()) - {"cli"}:
        service = COMPOSE["services"][name]
        assert service["build"]["target"] == name
        assert service["command"] == ["python", "-m", f"penstock_{name}"]
        assert service["depends_on"] == {
            "nats": {"condition": "service_healthy"},
            "streams": {"condition": "service_completed_successfully"},
        }


def test_in_compose_each_service_is_its_own_nats_user_and_nats_knows_all() -> None:
    known = COMPOSE["services"]["nats"]["environment"]
    assert set(known) == {password_variable(name) for name in NAMES}
    for name, user in [
        *((name, name) for name in set(services()) - {"cli"}),
        ("streams", OPERATOR),
    ]:
        given = COMPOSE["services"][name]["environment"]
        assert given["PENSTOCK_NATS_USER"] == user
        assert given["PENSTOCK_NATS_PASSWORD"].startswith(f"${{{password_variable(user)}:?")
        # and no password of another user
        assert [value for value in given.values() if "PASSWORD" in value] == [
            given["PENSTOCK_NATS_PASSWORD"]
        ]


def networks(name: str) -> set[str]:
    return set(COMPOSE["services"][name]["networks"])


def test_in_compose_agent_servers_cannot_reach_nats() -> None:
    joined = {name: networks(name) for name in COMPOSE["services"]}
    assert joined.pop("nats") == {"bus"}
    assert COMPOSE["networks"]["bus"] == {"internal": True}
    on_the_bus = {name for name, each in joined.items() if "bus" in each}
    assert on_the_bus == {*services(), "streams"} - {"cli"}


def test_in_compose_agent_servers_cannot_call_an_api() -> None:
    on_the_network = {name for name in COMPOSE["services"] if "agents" in networks(name)}
    assert on_the_network == {"connector", "edge", "demo-agno", "demo-adk"}
    # The edge listens only at the address that its name in the network `clients` has.
    edge = COMPOSE["services"]["edge"]
    assert edge["networks"] == {"bus": None, "agents": None, "clients": {"aliases": ["edge-api"]}}
    assert edge["environment"]["PENSTOCK_HOST"] == "edge-api"
    assert "edge-api" not in COMPOSE["services"]


def test_in_compose_the_services_with_an_api_ask_who_callers_are_and_no_other_has_the_secrets() -> (
    None
):
    for name in set(services()) - {"cli"}:
        given = COMPOSE["services"][name]["environment"]
        secrets = {each for each in given if each.startswith("PENSTOCK_AUTH_")}
        assert ("PENSTOCK_AUTH_CSRF_SECRET" in secrets) == (name in with_api()), name
        assert ("PENSTOCK_AUTH_JWT_SECRET" in secrets) == (name in with_api()), name
        assert "PENSTOCK_INSECURE_BIND" not in given


def with_api() -> set[str]:
    return {name for name in COMPOSE["services"] if "clients" in networks(name)} - {"cli", "proxy"}


def test_only_the_proxy_has_a_port() -> None:
    open_ports = {
        name: each["ports"] for name, each in COMPOSE["services"].items() if "ports" in each
    }
    assert open_ports == {"proxy": ["127.0.0.1:${PENSTOCK_PORT:-8000}:8000"]}


def test_the_proxy_of_compose_routes_as_the_ingress_of_the_chart() -> None:
    proxy = (ROOT / "deploy/compose/Caddyfile").read_text()
    matched = dict(re.findall(r"@(\w+) path (.+)", proxy))
    routed = {
        path.removesuffix("/*"): name for name, paths in matched.items() for path in paths.split()
    }
    for name in matched:
        assert f"reverse_proxy @{name} {{${name.upper()}:{name}:8000}}" in proxy
    text = (ROOT / "deploy/helm/penstock/templates/_helpers.tpl").read_text()
    table = re.search(r'define "penstock.paths" -}}\n(.*?){{- end', text, re.DOTALL)
    assert table is not None
    table_of_chart = yaml.safe_load(table[1])
    # Caddy's `/` is this path alone, which is `=/` in the chart.
    assert {"=/": routed.pop("/"), **routed, "/": "edge"} == table_of_chart
    # Every path of the table and every path below it: both are written.
    assert all(
        set(paths.split()) - {"/"}
        == {f"{each}{end}" for each in routed if routed[each] == name for end in ("", "/*")}
        for name, paths in matched.items()
    )


def test_the_secrets_of_compose_are_made_once_and_those_that_there_are_stay(tmp_path: Path) -> None:
    def made(file: Path) -> dict[str, str]:
        subprocess.run(["sh", ROOT / "deploy/compose/env.sh", file], check=True)
        return dict(line.split("=", 1) for line in file.read_text().splitlines())

    file = tmp_path / ".env"
    first = made(file)
    assert made(file) == first
    assert file.stat().st_mode & 0o077 == 0
    own = {"PENSTOCK_AUTH_JWT_SECRET", "PENSTOCK_AUTH_CSRF_SECRET", "PENSTOCK_RULE_KEYS"}
    assert set(first) == {password_variable(name) for name in NAMES} | own
    assert all(re.fullmatch("p[0-9a-f]{64}", value) for value in first.values())
    other = tmp_path / "other"
    other.write_text("PENSTOCK_NATS_PASSWORD_EDGE=mine\nPENSTOCK_AUTH_JWKS_URL=https://keys\n")
    second = made(other)
    assert second["PENSTOCK_NATS_PASSWORD_EDGE"] == "mine"
    assert "PENSTOCK_AUTH_JWT_SECRET" not in second  # a service refuses both
    # Compose takes every secret without a default from this file.
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
    assert required <= set(second)


def test_compose_builds_only_stages_that_there_are() -> None:
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            assert service["build"]["target"] in SHIPPED, name
            assert (ROOT / service["build"]["dockerfile"]).exists()


def test_the_nats_of_compose_acknowledges_only_what_is_on_the_disk() -> None:
    assert COMPOSE["services"]["nats"]["command"] == ["-c", "/etc/nats/nats.conf"]
    assert "sync_interval: always" in (ROOT / "deploy" / "nats" / "nats.conf").read_text()


def test_the_agents_of_compose_are_those_of_the_demo() -> None:
    demo = {agent["id"]: agent for recipe in RECIPES for agent in recipe.agents}
    with patch.dict(os.environ):
        os.environ.pop("PENSTOCK_WORKFLOWS", None)
        demo |= {agent.id: agent.model_dump() for agent in switch_on_workflows()}
    config = load_config(ROOT / "deploy/compose/penstock.yaml")
    assert {agent.id for agent in config.agents} == set(demo)
    for agent in config.agents:
        shown = agent.model_dump()
        assert {name: shown[name] for name in demo[agent.id]} == demo[agent.id]
    hosts = {urlsplit(agent.url).hostname for agent in config.server_agents}
    assert hosts == {"demo-agno", "demo-adk"}
    folder = COMPOSE["services"]["workflows"]["volumes"][-1].split(":")[0]
    assert (ROOT / folder).resolve() == WORKFLOWS


@pytest.mark.parametrize("stage", SHIPPED)
def test_an_image_runs_without_rights(stage: str) -> None:
    assert "\nUSER 10001\n" in STAGES[stage]


def test_there_is_an_image_of_every_service() -> None:
    assert set(services()) - {"cli"} | {"penstock"} <= set(SHIPPED)


@pytest.mark.parametrize("stage", STAGES)
def test_an_image_copies_only_what_there_is_and_installs_only_by_hash(stage: str) -> None:
    for source in re.findall(r"^COPY (?!--)(\S+) ", STAGES[stage], re.MULTILINE):
        assert (ROOT / source).exists()
    script = (ROOT / "deploy/image-files.sh").read_text()
    for install in re.findall(
        r"pip\S*(?: --python \S+)? install(?:[^\\\n]|\\\n)*", STAGES[stage] + script
    ):
        assert "--no-deps" in install
        assert "--require-hashes" in install or "--no-index" in install


@pytest.mark.parametrize("stage", STAGES)
def test_old_builders_take_an_image(stage: str) -> None:
    # buildah 1.28 mounts an empty folder for `--mount=from=` when the stage comes from its cache.
    steps = [line for line in STAGES[stage].splitlines() if not line.startswith("#")]
    assert "--mount" not in "\n".join(steps)
    assert "<<" not in "\n".join(steps)
    for copied in re.findall(r"^COPY --from=(\S+)", STAGES[stage], re.MULTILINE):
        assert list(STAGES).index(copied) < list(STAGES).index(stage)


# An interpreter whose pip installs nothing and prints what a real pip prints.
PYTHON = """#!/bin/sh
case "$*" in
*"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*"pip install"*)
    for n in $(seq 30); do echo "Collecting package-$n==1.0"; done
    echo "Installing collected packages: package-1"
    exit "${PIP_ENDS_WITH:-0}"
    ;;
*--version*) echo "Python 3.11.0" ;;
esac
"""


def set_up(folder: Path, terminal: bool, ends_with: int = 0) -> tuple[int, str]:
    """Run deploy/venv.sh; return its exit code and its output."""
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    lock = folder / "lock.txt"
    lock.write_text("".join(f"package-{n}==1.0 \\\n    --hash=sha256:0\n" for n in range(1, 31)))
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        ["sh", ROOT / "deploy/venv.sh", folder / "venv", lock],
        stdout=theirs,
        env=os.environ | {"PYTHON": str(python), "PIP_ENDS_WITH": str(ends_with)},
    )
    os.close(theirs)
    said = b""
    with suppress(OSError):  # a read from a closed terminal raises OSError
        while read := os.read(ours, 4096):
            said += read
    os.close(ours)
    return process.wait(60), said.decode()


def test_setting_up_says_how_far_it_is(tmp_path: Path) -> None:
    code, said = set_up(tmp_path, terminal=False)
    assert code == 0
    assert said.splitlines()[1:] == [
        "  venv: making the environment with Python 3.11.0",
        "  venv: fetching 25 of 30",
        "  venv: installing 30",
        "  venv: done",
    ]
    assert set_up(tmp_path, terminal=False) == (0, "")  # the environment exists already


def test_setting_up_at_a_terminal_counts_every_package(tmp_path: Path) -> None:
    code, said = set_up(tmp_path, terminal=True)
    assert code == 0
    assert "\r  venv: fetching 7 of 30: package-7==1.0" in said


def test_a_setup_that_failed_is_done_again(tmp_path: Path) -> None:
    assert set_up(tmp_path, terminal=False, ends_with=1)[0] == 1
    assert "fetching" in set_up(tmp_path, terminal=False)[1]


def wheel(folder: Path, name: str, version: str, *lines: str) -> str:
    """Write an empty wheel with these further lines of metadata; return its line of a lock."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{about}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]
        ),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(file, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def python_with_pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python whose `-m venv` copies an environment. Making one takes 3 s of CPU."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder / "made"], check=True)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$1 $2" in\n"-m venv") exec cp -a {folder}/made "$3" ;;\nesac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return python


def install(folder: Path, python: Path, *lock: str) -> subprocess.CompletedProcess[str]:
    """Run deploy/venv.sh with the real pip, this lock and the wheels of `folder`."""
    (folder / "lock.txt").write_text("".join(lock))
    return subprocess.run(
        ["sh", ROOT / "deploy/venv.sh", folder / "venv", folder / "lock.txt"],
        env=os.environ
        | {"PYTHON": str(python), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.chaos
def test_a_version_released_after_the_lock_breaks_no_setup(
    tmp_path: Path, python_with_pip: Path
) -> None:
    user = wheel(tmp_path, "user", "1.0", "Requires-Dist: auth[tls]>=1.0")
    auth = wheel(tmp_path, "auth", "1.0", "Provides-Extra: tls")
    wheel(tmp_path, "auth", "2.0", "Provides-Extra: tls")
    done = install(tmp_path, python_with_pip, user, auth)
    assert done.returncode == 0, done.stdout + done.stderr
    assert next((tmp_path / "venv").glob("lib/*/site-packages/auth-1.0.dist-info"))


@pytest.mark.chaos
def test_a_lock_that_lacks_a_package_is_named(tmp_path: Path, python_with_pip: Path) -> None:
    user = wheel(tmp_path, "user", "1.0", "Requires-Dist: auth[tls]>=1.0")
    done = install(tmp_path, python_with_pip, user)
    assert done.returncode == 1
    assert "user 1.0 requires auth, which is not installed" in done.stderr
    assert f"{tmp_path / 'lock.txt'} lacks a package on this system" in done.stderr


@pytest.fixture
def layers(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Return a function that starts deploy/venv.sh for these locks; nothing is installed."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    for lock in ("run", "test"):
        (tmp_path / lock).write_text(f"{lock}==1.0\n")

    def start(locks: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", ROOT / "deploy/venv.sh", "venv", locks],
            cwd=tmp_path,
            env=os.environ | {"PYTHON": str(python)},
            stdout=subprocess.PIPE,
            text=True,
        )

    return start


def test_the_tools_of_tests_are_added_to_the_environment_of_a_run_and_do_no_harm_to_it(
    tmp_path: Path, layers: Callable[[str], subprocess.Popen[str]]
) -> None:
    assert "making the environment" in layers("run").communicate(timeout=60)[0]
    added = layers("run:test").communicate(timeout=60)[0]
    assert "installing" in added
    assert "making the environment" not in added
    for locks in ("run", "run:test"):
        assert layers(locks).communicate(timeout=60)[0] == ""  # everything is there
    (tmp_path / "run").write_text("run==2.0\n")
    assert "making the environment" in layers("run").communicate(timeout=60)[0]


def test_two_setups_of_a_folder_do_not_work_on_it_at_the_same_time(
    tmp_path: Path, layers: Callable[[str], subprocess.Popen[str]]
) -> None:
    (tmp_path / "venv.pid").write_text("0999999999\n")  # of a process that was killed
    both = [layers("run"), layers("run")]
    said = "".join(process.communicate(timeout=100)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said.count("making the environment") == 1
    assert not (tmp_path / "venv.pid").exists()
