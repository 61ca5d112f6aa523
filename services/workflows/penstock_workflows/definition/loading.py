"""Loads a definition from a document, and finds the place of each mistake. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import BaseModel, ValidationError

from penstock.validation import did_you_mean, fields_at, reason_of
from penstock_workflows.definition import compiled
from penstock_workflows.definition.compiling import compile
from penstock_workflows.definition.document import Document, read_document
from penstock_workflows.definition.model import DSL, PATTERNS, Definition
from penstock_workflows.definition.problems import MAX_PROBLEMS, InvalidDefinition, Path, Problem


@dataclass(frozen=True, slots=True)
class Loaded:
    """A definition without mistakes.

    `value` is the document as a JSON value, which is stored. `document` finds the positions of
    problems that are discovered later. `document` is None if the definition was not read from a
    document.
    """

    workflow: compiled.Workflow
    value: dict[str, Any]
    document: Document | None

    @property
    def digest(self) -> str:
        return digest_of(self.value)

    def refuse(self, problems: Collection[Problem]) -> None:
        if problems:
            located = self.document.located if self.document is not None else lambda each: each
            raise InvalidDefinition(sorted(map(located, problems), key=_place))


def load(content: bytes) -> Loaded:
    """Return the definition in a document of YAML or JSON.

    Raises:
        InvalidDefinition: the document cannot be read, or has mistakes, each with its position.
    """
    document = read_document(content)
    problems = list(document.problems)
    try:
        loaded = load_value(document.value)
    except InvalidDefinition as error:
        problems += map(document.located, error.problems)
    if problems:
        raise InvalidDefinition(sorted(problems, key=_place))
    return Loaded(loaded.workflow, loaded.value, document)


def load_value(value: Any) -> Loaded:
    """Return the definition in a JSON value. Raises InvalidDefinition."""
    if not isinstance(value, dict):
        raise InvalidDefinition([Problem((), "a definition is an object with dsl, name, steps, …")])
    try:
        definition = Definition.model_validate(value)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        found = [problem_of(each) for each in mistakes if not _is_of_items(each)]
        raise InvalidDefinition([*found, *_further(value, found)]) from None
    return Loaded(compile(definition, is_new=True), value, None)


# What stands in for a wrong value, so that the rest can be compiled. A value that has none is left
# out.
_OF_STEP: Final[Mapping[str, Any]] = {
    "run": {"agent": "x", "message": '""'},
    "workflow": {"workflow": "x"},
    "approve": {"title": '""'},
    "call": {"url": "https://x.invalid"},
    "listen": {"event": "lifecycle.completed"},
    "for_each": {"in": "[]"},
    "repeat": {"until": "true", "rounds": 1},
    "retry": {"attempts": 1},
    "wait": "1s",
    "set": "null",
}
_OF_DEFINITION: Final[Mapping[str, Any]] = {
    "dsl": DSL,
    "name": "x",
    "version": "1",
    "steps": {"x": {"set": "null"}},
    "schedule": {"cron": "0 0 * * *"},
    "exclusive": {"key": '""'},
}


def _further(value: dict[str, Any], found: Sequence[Problem]) -> list[Problem]:
    """Return the mistakes that the compiler finds beside those of the model, each of which is in
    another place."""
    if len(found) > MAX_PROBLEMS:
        return []
    # The deepest first: what is mended takes what is inside it away.
    for problem in sorted(found, key=lambda each: len(each.path), reverse=True):
        value = _mended(value, problem)
    try:
        compile(Definition.model_validate(value), is_new=True, unsure=[each.path for each in found])
    except ValidationError:
        return []  # two mistakes hid a third one, which the next check names
    except InvalidDefinition as error:
        return [each for each in error.problems if each.path not in {one.path for one in found}]
    return []


def _mended(value: Any, problem: Problem) -> Any:
    """Return the definition with a stand-in for the wrong value, or without it."""
    path = problem.path
    if problem.is_key:
        return _replaced(value, path, None)
    match path:
        case (*_, place, int()):
            return _replaced(value, path, 200 if place == "expect" else "x")
        case ("steps", _):
            return _replaced(value, path, {"set": "null"})
        case ("steps", _, *places):
            stand_in: Any = _OF_STEP
        case places:
            stand_in = _OF_DEFINITION
    for place in places:
        stand_in = stand_in.get(place) if isinstance(stand_in, Mapping) else None
    return _replaced(value, path, stand_in)


def _replaced(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of the value with `new` at the path, or with nothing there if `new` is None."""
    [key, *rest] = path
    if isinstance(value, list):
        return [new if at == key else each for at, each in enumerate(value)]
    if rest:
        return {**value, key: _replaced(value[key], tuple(rest), new)}
    others = {name: each for name, each in value.items() if name != key}
    return others if new is None else {**others, key: new}


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, in hex. The order of fields has no meaning, also that of
    steps, whose `needs` name the steps to wait for."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _place(problem: Problem) -> tuple[int, int]:
    where = problem.position
    return (where.line, where.column) if where is not None else (0, 0)


def _is_of_items(error: Any) -> bool:
    """Return whether pydantic calls a list too short only since its items are wrong."""
    is_short = error["type"] == "too_short"
    return is_short and len(error["input"]) >= int(error["ctx"]["min_length"])


def problem_of(error: Any, model: type[BaseModel] = Definition) -> Problem:
    """Return a mistake that pydantic has found in a value of the model."""
    path: Path = tuple(each for each in error["loc"] if each != "[key]")
    type_, value = error["type"], error["input"]
    if type_ == "extra_forbidden":
        name = str(path[-1])
        guess = did_you_mean(name, fields_at(model, path[:-1]))
        return Problem(path, f"there is no field {name[:64]!r}{guess}", is_key=True)
    reason = "must not be empty" if type_ == "string_too_short" else reason_of(error)
    if type_ == "string_type" and isinstance(value, bool | int | float):
        reason = f'must be a text: write "{orjson.dumps(value).decode()}" in quotes'
    if type_ == "string_pattern_mismatch":
        pattern = error["ctx"]["pattern"]
        shown = value if len(value) <= 64 else f"{value[:64]}…"
        reason = f"{shown!r} is not allowed: {PATTERNS.get(pattern, pattern)}"
    return Problem(path, reason, is_key="[key]" in error["loc"])
