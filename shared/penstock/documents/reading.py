"""Reads a document from YAML or JSON, and names each mistake with its line. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import orjson
import yaml
from pydantic import BaseModel, ValidationError
from yaml.nodes import Node

from penstock.validation import reason_of
from penstock.yaml_lines import REPEATED_KEY, line_of, repeated_keys

MAX_BYTES: Final = 512 * 1024
ModelT = TypeVar("ModelT", bound=BaseModel)
# A mistake's path in the document, and its reason.
Found = tuple[Sequence[int | str], str]


class Mistake(NamedTuple):
    """A mistake in a document. `line` counts from 1; it is 0 for a document without a text."""

    field: str
    reason: str
    line: int = 0

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.field}: {self.reason}" if self.field else f"{place}{self.reason}"


class InvalidDocument(ValueError):
    """The error for a document with mistakes. The text names each mistake."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = list(mistakes)


def value_of(text: str) -> tuple[Any, Node | None]:
    """Return the value of a text in YAML (or JSON), and its node. Raises InvalidDocument."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise InvalidDocument([Mistake("", f"it may have at most {MAX_BYTES} bytes")])
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if twice := list(repeated_keys(root)):
            raise InvalidDocument([Mistake(key, REPEATED_KEY, line) for key, line in twice])
        return yaml.safe_load(text), root
    except InvalidDocument:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        mistake = Mistake("", f"not YAML: {error.problem or error.context}", line)
        raise InvalidDocument([mistake]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidDocument([Mistake("", f"not YAML: {error}")]) from None


def checked(
    model: type[ModelT],
    value: Any,
    further: Callable[[ModelT], Iterable[Found]],
    root: Node | None = None,
) -> ModelT:
    """Return the document that a value describes; `root` is its YAML node.

    `further` finds mistakes that the model does not find, such as a wrong condition. Raises
    InvalidDocument with all mistakes.
    """
    try:
        document = model.model_validate(value)
        mistakes: list[Found] = list(further(document))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        mistakes = [(each["loc"], reason_of(each)) for each in found]
    if mistakes:
        raise InvalidDocument(
            [Mistake(_name(path), reason, line_of(root, path)) for path, reason in mistakes]
        )
    return document


def digest_of(document: BaseModel) -> str:
    """Return the SHA-256 of a document's content, which does not depend on the file's layout."""
    content = document.model_dump(mode="json", by_alias=True)
    canonical = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"


def _name(path: Sequence[int | str]) -> str:
    """Return a path as `rules[2].deadline`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")
