"""Runs tests of workflows on this machine, without a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_workflows.definition import InvalidDefinition, Problem, load
from penstock_workflows.registry import is_test
from penstock_workflows.testing.carry_out import carry_out
from penstock_workflows.testing.document import read_tests


@dataclass(frozen=True, slots=True)
class Tested:
    """A test that was run, or a file that cannot be used. `problems` has the differences or
    mistakes in the form that the service uses; a test without any has passed."""

    path: Path
    test: str
    problems: Sequence[Mapping[str, Any]] = ()


def run(files: Sequence[Path]) -> Iterator[Tested]:
    """Yield each test of the files, and of the files `*.test.yaml` of folders."""
    for path in files:
        inside = sorted(filter(is_test, path.iterdir())) if path.is_dir() else [path]
        for each in inside:
            yield from _run(each)


def _run(path: Path) -> Iterator[Tested]:
    current = path
    try:
        document = read_tests(path.read_bytes())
        current = path.parent / document.cases.workflow
        loaded = load(current.read_bytes())
        current = path
        tests = document.tests_of(loaded)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        yield Tested(current, "", [{"field": "file", "message": reason}])
    except InvalidDefinition as error:
        yield Tested(current, "", _shown(error.problems))
    else:
        for test in tests:
            differences = map(document.document.located, carry_out(test, loaded))
            yield Tested(path, str(test.path[-1]), _shown(differences))


def _shown(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    return [each.shown() for each in problems]
