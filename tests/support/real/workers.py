"""Processes that are forked after the collection and run the tests file by file (`--workers N`).

Each worker of pytest-xdist would import and collect all tests for itself, which takes 9 s of CPU.
A forked worker has the collected tests, so that it costs nothing to have more workers, which wait
most of the time.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from _pytest._io import TerminalWriter

_FORK = multiprocessing.get_context("fork")
_NUMBER_BYTES = 4
_Location = tuple[str, int | None, str]

# Files that one worker runs, by the name of their group. The nodes of their tests begin with them.
TOGETHER: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--workers`. Without it, one process runs all tests."""
    parser.addoption("--workers", type=int, default=0, help="processes that run files of tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Give workers whole files, in the order of the collection.

    A fixture of a module is a NATS server at least, often all services or a browser. A worker that
    took some tests of a file would make it again.
    """
    option = session.config.option
    if not option.workers or session.testsfailed or option.collectonly:
        return None
    groups: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        file = item.nodeid.partition("::")[0]
        groups.setdefault(TOGETHER.get(file, file), []).append(item)
    _Workers(session, [*groups.values()]).run(option.workers)
    return True


@dataclass(slots=True)
class _Worker:
    """A worker, and the test that it runs."""

    process: BaseProcess
    running: tuple[str, _Location] | None = None


class _Workers:
    """Runs groups of tests, each group in one worker and in its order."""

    def __init__(self, session: pytest.Session, groups: Sequence[Sequence[pytest.Item]]) -> None:
        self._session = session
        self._groups = groups
        self._workers: dict[connection.Connection, _Worker] = {}
        # The numbers of the groups that no worker has taken. A pipe gives each to one reader.
        self._numbers, writer = os.pipe()
        os.write(writer, b"".join(each.to_bytes(_NUMBER_BYTES) for each in range(len(groups))))
        os.close(writer)

    def run(self, count: int) -> None:
        """Run all groups in `count` workers, and report as pytest does in one process.

        Raises:
            pytest.Session.Failed: as many tests have failed as `--maxfail` allows.
            pytest.Session.Interrupted: a test asked for the end.
            RuntimeError: a worker ended with an error outside of any test.
        """
        config: Any = self._session.config
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # the files take turns
        config._tmp_path_factory.getbasetemp()  # all workers make their folders in this one
        try:
            for _ in range(min(count, len(self._groups))):
                self._start()
            while self._workers:
                for results in connection.wait([*self._workers]):
                    assert isinstance(results, connection.Connection)
                    self._receive(results)
        finally:
            for worker in self._workers.values():
                worker.process.terminate()
                worker.process.join()
            os.close(self._numbers)

    def _start(self) -> None:
        results, ours = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=self._work, args=(ours,))
        process.start()
        ours.close()  # so that the end of the worker is the end of its results
        self._workers[results] = _Worker(process)

    def _receive(self, results: connection.Connection) -> None:
        """Pass on what a worker has to say, or notice its end."""
        config, session, worker = self._session.config, self._session, self._workers[results]
        try:
            what, *more = results.recv()
        except EOFError:
            del self._workers[results]
            results.close()
            worker.process.join()
            self._ended(worker)
        else:
            if what == "report":
                report = config.hook.pytest_report_from_serializable(config=config, data=more[0])
                config.hook.pytest_runtest_logreport(report=report)
            else:
                nodeid, location = more
                worker.running = (nodeid, location) if what == "start" else None
                log = getattr(config.hook, f"pytest_runtest_log{what}")
                log(nodeid=nodeid, location=location)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def _ended(self, worker: _Worker) -> None:
        """Let the test fail in which a worker ended, and have another one run what comes after.

        Raises:
            RuntimeError: the worker ended with an error outside of any test.
        """
        code = worker.process.exitcode
        if worker.running is not None:
            nodeid, location = worker.running
            report = pytest.TestReport(
                *(nodeid, location, {}, "failed"),
                longrepr=f"The process ended with exit code {code} in this test. The tests after "
                "it in its file, and in the files that share its servers, were not run.",
                when="call",
            )
            self._session.config.hook.pytest_runtest_logreport(report=report)
            self._start()
        elif code:
            raise RuntimeError(f"a worker ended with exit code {code}; it has said why above")

    def _work(self, results: connection.Connection) -> None:
        """Run groups until none is left; runs in the forked process."""
        config = self._session.config
        atexit._clear()  # what the process that collected will do at its end
        _own_output(config)
        config.pluginmanager.register(_Reports(config, results))
        for group in self._taken():
            # A test is told of the test after it, whose fixtures stay. After the last one of a
            # group, those of the session stay, as the worker does not know its next group yet.
            for item, following in zip(group, [*group[1:], self._session], strict=True):
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()  # `multiprocessing` leaves them out

    def _taken(self) -> Iterator[Sequence[pytest.Item]]:
        while number := os.read(self._numbers, _NUMBER_BYTES):
            yield self._groups[int.from_bytes(number)]


class _Reports:
    """Sends what pytest reports in a worker to the process that collected the tests."""

    def __init__(self, config: pytest.Config, results: connection.Connection) -> None:
        self._config = config
        self._results = results
        options = config.option
        self._sends_all = options.durations is not None or options.xmlpath is not None

    def pytest_runtest_logstart(self, nodeid: str, location: _Location) -> None:
        self._results.send(("start", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report, unless it says that a set-up or an end has passed: nobody shows that."""
        if report.passed and report.when != "call" and not self._sends_all:
            return
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._results.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: _Location) -> None:
        self._results.send(("finish", nodeid, location))


class _Terminal:
    """Stands in for the terminal in a worker: pytest-timeout writes the stacks of threads to it.

    What is written goes to stderr, which is part of the test's report.
    """

    def __init__(self) -> None:
        self._tw = TerminalWriter(sys.__stderr__)


def _own_output(config: pytest.Config) -> None:
    """Capture the output of tests in files of this worker, and print nothing of the reports."""
    plugins = config.pluginmanager
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    plugins.unregister(name="terminalreporter")
    plugins.register(_Terminal(), "terminalreporter")
