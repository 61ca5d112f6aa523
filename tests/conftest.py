"""Fixtures for all tests: real nats-servers and real agent servers. tests/support defines them."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import ssl
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import certifi
import hypothesis
import pytest
import yaml
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from support.drive.repository import ROOT
from support.real import devtools, forked, memory, servers, up, upstreams, workers
from support.real.nats import NatsServer, write_passwords
from support.real.nats_choice import NotPossible, chosen, new_server
from support.real.ports import free_port
from support.real.upstreams import Recipe, Upstream
from support.real.workers import pytest_addoption, pytest_runtestloop

__all__ = ["pytest_addoption", "pytest_runtestloop"]  # hooks of this file, too

# Hypothesis uses fixed examples, so that `make test` is the same each time. An example has no
# deadline, so that a slow machine fails no test. Deep searches have the mark `chaos`.
hypothesis.settings.register_profile("penstock", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("penstock")


# The time limit of a test that tries many examples, in seconds. Such a test takes as long as the
# machine needs for all examples, so the limit of other tests would be too short. Each wait inside
# such a test has a deadline of its own.
HYPOTHESIS_TIMEOUT_S = 900
# The same for a test with real agent servers. The first such test of a worker waits until up to
# five of them have started, which takes minutes on a busy machine.
REAL_TIMEOUT_S = 300


# The number of new objects after which Python looks for garbage.
GC_THRESHOLD = 50_000

# The files whose tests share a deployment, by the folder whose fixture starts it. One worker runs
# them all, so that the deployment is started once.
TOGETHER = {
    **{
        f"tests/e2e/test_{name}.py": "tests/e2e"
        for name in (
            *("agno_surface", "adk_surface", "agui_surface", "real_servers"),
            *("agno_sessions", "costs", "forks", "logs", "metrics"),
        )
    },
    **{
        f"tests/e2e/workflows/test_{name}.py": "tests/e2e/workflows"
        for name in ("answers", "budgets", "dialects", "shapes")
    },
}
workers.TOGETHER.update(TOGETHER)
# The files that take longest, in the order in which they begin. A worker that began one of them
# last would work alone for half a minute, while all other workers have ended.
FIRST = (
    "tests/e2e/test_second_user.py",
    "tests/e2e/test_clocks.py",
    "tests/chaos/test_chaos.py",
    "tests/console/test_console.py",
    *TOGETHER,
    "tests/cli/test_up.py",
    "tests/broker/test_cluster.py",
    "tests/broker/test_one_broker.py",
    "tests/broker/test_start.py",
    "tests/workflows/test_storm.py",
    "tests/shared/bus/write/test_stateful_raw.py",
    "tests/shared/subscribe/test_subscribe.py",
    "tests/workflows/test_waiting.py",
    "tests/workflows/test_running.py",
    "tests/shared/dialects/agui/test_agui_encode_client.py",
)


# Halves the CPU time of the nats-servers, which are hundreds and mostly idle. Go's scheduler and
# garbage collector take most of this time.
FRUGAL_GO = {"GOMAXPROCS": "1", "GOGC": "400"}


# The process that the user started, which outlives every worker.
OWNER_PID = os.getpid()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the process from which all workers fork programs, while the tests are collected."""
    if session.config.option.workers:
        forked.prepare()


def pytest_configure(config: pytest.Config) -> None:
    """End the test run at once if it asks for NATS servers that cannot be had.

    Tests marked `chaos`, `bench` or `kubernetes` have Go programs that use the whole machine.

    A shell starts background jobs with SIGINT ignored. Without the handler, the processes that
    tests start would ignore the SIGINT of a test, too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "not chaos" in config.option.markexpr and "not kubernetes" in config.option.markexpr:
        for name, value in FRUGAL_GO.items():
            os.environ.setdefault(name, value)
        if memory.has_room():
            # The folders of tests: data of `penstock up`, clusters, profiles of the browser.
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory.MEMORY))
    try:
        chosen(os.environ)
    except NotPossible as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector skip the tests and the modules, which exist until the run's end.

    Without this hook, full collections take 5 s while a process collects all tests, and each full
    collection during the tests takes 0.5 s. A higher threshold than Python's 700 saves 2 % of the
    CPU time of the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of `FIRST` first, and give long tests their time limits.

    A test that has a limit of its own keeps it.
    """
    places = {ROOT / path: place for place, path in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(FIRST)))
    for item in items:
        test = getattr(item, "obj", None)
        called = getattr(getattr(test, "__code__", None), "co_names", ())
        tries_examples = hasattr(test, "hypothesis") or "run_state_machine_as_test" in called
        if item.get_closest_marker("timeout") is not None:
            continue
        if tries_examples:
            item.add_marker(pytest.mark.timeout(HYPOTHESIS_TIMEOUT_S))
        elif item.get_closest_marker("real") is not None:
            item.add_marker(pytest.mark.timeout(REAL_TIMEOUT_S))


_create_context = ssl.create_default_context
_PUBLIC = (certifi.where(), os.environ.get("SSL_CERT_FILE"))


@cache
def _public_context(cafile: str) -> ssl.SSLContext:
    return _create_context(cafile=cafile)


@pytest.fixture(scope="session", autouse=True)
def public_certificates_once() -> Iterator[None]:
    """Let all HTTP clients share one TLS context.

    Without this fixture, each client would spend 20 ms on reading all public certificates. Almost
    every test makes clients, and none of these clients connects to a public server over TLS.
    """

    def create(*args: Any, **given: Any) -> ssl.SSLContext:
        if not args and given.keys() == {"cafile"} and given["cafile"] in _PUBLIC:
            return _public_context(given["cafile"])
        return _create_context(*args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", create)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_search_for_sniffio() -> Iterator[None]:
    """Let Python remember that the library sniffio is not installed.

    httpcore tries to import it for each lock of each request, and Python searches all folders anew
    each time. That took 5 % of the CPU time of tests that send requests.
    """
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("sniffio") is None:
            patch.setitem(sys.modules, "sniffio", None)
        yield


@pytest.fixture(scope="session", autouse=True)
def fields_of_settings_once() -> Iterator[None]:
    """Let pydantic-settings remember the variables of a field, and whether its type is complex.

    It looks at the types of all fields anew whenever it reads settings. That took a fifth of the
    CPU time of tests that run services in their own process.
    """

    def remembering(look: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[tuple[object, ...], tuple[FieldInfo, Any]] = {}

        def looked(source: EnvSettingsSource, field: FieldInfo, name: str = "", *more: Any) -> Any:
            arguments = (field, name, *more) if name else (field,)
            if more:
                return look(source, *arguments)
            key = (source.settings_cls, source.env_prefix, id(field), name)
            if key not in known:
                known[key] = field, look(source, *arguments)
            return known[key][1]

        return looked

    with pytest.MonkeyPatch.context() as patch:
        for method in ("_extract_field_info", "_field_is_complex"):
            patch.setattr(
                EnvSettingsSource, method, remembering(getattr(EnvSettingsSource, method))
            )
        yield


@pytest.fixture(scope="session", autouse=True)
def nats_passwords(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the services of all tests the passwords of their NATS users.

    Each service has its own NATS user, in the test's process and in a separate process.
    """
    with pytest.MonkeyPatch.context() as environment:
        folder = write_passwords(tmp_path_factory.mktemp("credentials"))
        environment.setenv("PENSTOCK_NATS_PASSWORDS", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def test_run(tmp_path_factory: pytest.TempPathFactory) -> servers.SharedRun:
    """Return the run of the tests, whose workers share servers, a browser and a folder."""
    found = servers.SharedRun(tmp_path_factory.getbasetemp() / "shared", OWNER_PID)
    devtools.share(found)
    return found


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run one nats-server with JetStream per module. A test must not stop it: see `fresh_nats`.

    One server for all modules would keep the unfinished runs of every earlier test. The services of
    the later tests would look after these runs, and their tests took up to ten times as long.
    """
    server = new_server(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.remove()


@pytest.fixture
def fresh_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """Run an empty nats-server for this test alone, which the test may stop, kill or restart.

    A test that counts messages also needs this server, because it holds no messages of other tests.
    """
    server = new_server(tmp_path / "nats", name="fresh nats")
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def agno_server(test_run: servers.SharedRun) -> Upstream:
    """Return the real Agno 3.1.10 AgentOS with scripted models; the whole test run shares it."""
    return _upstream(upstreams.AGNO, test_run)


@pytest.fixture(scope="session")
def adk_server(test_run: servers.SharedRun) -> Upstream:
    """Return the real google-adk 2.13.0 server with scripted models, for the whole test run."""
    return _upstream(upstreams.ADK, test_run)


@pytest.fixture(scope="session")
def pydantic_ai_server(test_run: servers.SharedRun) -> Upstream:
    """Return the real pydantic-ai 2.68.0 AG-UI adapter with scripted models."""
    return _upstream(upstreams.PYDANTIC_AI, test_run)


@pytest.fixture(scope="session")
def langgraph_server(test_run: servers.SharedRun) -> Upstream:
    """Return the real ag-ui-langgraph 0.0.47 with a graph that asks before it deletes."""
    return _upstream(upstreams.LANGGRAPH, test_run)


@pytest.fixture(scope="session")
def agno_agui_server(test_run: servers.SharedRun) -> Upstream:
    """Return the real AG-UI interface of Agno 3.1.10 with a scripted model."""
    return _upstream(upstreams.AGNO_AGUI, test_run)


@pytest.fixture(scope="session")
def agno_older_server(test_run: servers.SharedRun) -> Upstream:
    """Return the real Agno 2.3.18 AgentOS with the same agents; skip the test without it."""
    return _upstream(upstreams.AGNO_OLDER, test_run, made_by="upstreams-older")


@pytest.fixture(scope="session")
def adk_older_server(test_run: servers.SharedRun) -> Upstream:
    """Return the real google-adk 1.16.0 server with the same agents; skip the test without it."""
    return _upstream(upstreams.ADK_OLDER, test_run, made_by="upstreams-older")


def _upstream(recipe: Recipe, run: servers.SharedRun, made_by: str = "upstreams") -> Upstream:
    if not recipe.python.exists():
        reason = f"no environment for the real {recipe.name} server: run `make {made_by}`"
        # In CI, a missing environment fails the test: nobody would notice a skip there. The older
        # servers are no part of `make test`.
        is_needed = made_by == "upstreams" and os.environ.get("CI") == "true"
        pytest.fail(reason) if is_needed else pytest.skip(reason)
    return upstreams.shared(recipe, run)


_log_sizes = pytest.StashKey[dict[str, int]]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    sizes = item.stash[_log_sizes] = {}
    for name, log in servers.LOGS.items():
        try:
            sizes[name] = os.stat(log).st_size
        except FileNotFoundError:
            continue


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the servers wrote during a failed test to its report."""
    report = yield
    if report.failed:
        for name, log in servers.LOGS.items():
            if text := servers.tail(log, item.stash.get(_log_sizes, {}).get(name, 0)):
                report.sections.append((f"{name} wrote", text))
    return report


@pytest.fixture(scope="session")
def demo(test_run: servers.SharedRun, agno_server: Upstream, adk_server: Upstream) -> str:
    """Return the address of the demo, with the tests' Agno server as the further agent `tester`.

    The demo's own servers run in the environments of the tests' servers. All workers share it, so a
    test must not rely on what is the newest, the only or the last.
    """
    config = test_run.folder / "console.yaml"
    tester = {"id": "tester", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    away = {"id": "away", "protocol": "agui", "url": "http://127.0.0.1:9/"}
    # The agents of `penstock replay-server`, which a test starts on this port. The file is the same
    # for all workers.
    port = test_run.once("replay-server-port", lambda _: str(free_port()))
    stored = {"url": f"http://127.0.0.1:{port}"}
    replays = [
        {"id": "replayed-agno", "protocol": "agno", "agent": "demo-agent", **stored},
        {"id": "replayed-adk", "protocol": "adk", "agent": "vana", **stored},
    ]
    config.write_text(yaml.safe_dump({"agents": [tester, away, *replays]}))
    return up.shared(
        test_run,
        "demo",
        "--demo",
        *("--config", str(config)),
        PENSTOCK_DEMO_AGNO_PYTHON=str(upstreams.AGNO.python),
        PENSTOCK_DEMO_ADK_PYTHON=str(upstreams.ADK.python),
    )
