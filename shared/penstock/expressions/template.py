"""Compiles and fills templates, which are texts with placeholders such as `{{ event.data.tool }}`.

Pure.

A placeholder is a path into the data, or a text in double quotes. In a template, the characters
`{{` are written as `{{ "{{" }}`. Templates have no operators and no functions. So the time and the
memory for filling a template are proportional to the size of the template and of the inserted
values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from penstock.expressions.errors import ExpressionError, MissingField, Position

MAX_CHARACTERS: Final = 10_000  # the greatest length of a template
MAX_PLACEHOLDERS: Final = 50
MAX_STEPS: Final = 20  # the greatest number of names and indexes in a path
MAX_RESULT_BYTES: Final = 64 * 1024

_OPEN, _CLOSE = "{{", "}}"
_BLANK = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_STEP = re.compile(
    r"""\s*(?:\.\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |\[\s*(?P<index>[0-9]{1,9})\s*\]
    |\[\s*(?P<key>"(?:[^"\\\n]|\\.)*")\s*\])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Path:
    """A path into the data. `text` is the path as it was written, for error messages. `steps` has
    names of fields and indexes of lists; the first step is the name of a variable."""

    text: str
    steps: tuple[str | int, ...]

    def value(self, data: Mapping[str, Any]) -> Any:
        """Return the value at the path. Raises MissingField."""
        found: Any = data
        for step in self.steps:
            try:
                if isinstance(step, int) != isinstance(found, list):
                    raise LookupError
                found = found[step]
            except (LookupError, TypeError):
                raise MissingField(f"the data has no {self.text}") from None
        return found


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template, which has plain texts and paths in the order of the template."""

    parts: tuple[str | Path, ...]

    @classmethod
    def compile(cls, text: str, variables: Collection[str]) -> Template:
        """Return the compiled template.

        Raises:
            ExpressionError: the template is too long, or a placeholder is not closed, is no path,
                or begins with an unknown variable.
        """
        if len(text) > MAX_CHARACTERS:
            _refuse(text, 0, f"a template has at most {MAX_CHARACTERS} characters")
        parts: list[str | Path] = []
        at = placeholders = 0
        while (opened := text.find(_OPEN, at)) >= 0:
            placeholders += 1
            if placeholders > MAX_PLACEHOLDERS:
                _refuse(text, opened, f"a template has at most {MAX_PLACEHOLDERS} placeholders")
            part, end = _placeholder(text, opened, variables)
            parts += [text[at:opened], part]
            at = end
        return cls(tuple(part for part in (*parts, text[at:]) if part != ""))

    @property
    def paths(self) -> list[tuple[str | int, ...]]:
        """The paths of all placeholders, as names of fields and indexes of lists."""
        return [part.steps for part in self.parts if isinstance(part, Path)]

    def fill(self, data: Mapping[str, Any], max_bytes: int = MAX_RESULT_BYTES) -> str:
        """Return the text with the values in place of the placeholders.

        A text is inserted unchanged, every other value as JSON. Raises MissingField, and
        ExpressionError for a result of more than `max_bytes`.
        """
        size, filled = 0, []
        for part in self.parts:
            text = part if isinstance(part, str) else _shown(part.value(data))
            size += len(text.encode("utf-8", "surrogatepass"))
            if size > max_bytes:
                raise ExpressionError(f"the text would be larger than {max_bytes} bytes")
            filled.append(text)
        return "".join(filled)

    def value(self, data: Mapping[str, Any], max_bytes: int = MAX_RESULT_BYTES) -> Any:
        """Return the filled text; if the template is only a placeholder, return its value. For
        example, `"{{ event.sequence }}"` gives a number, not a text. Raises as `fill` does."""
        match self.parts:
            case (Path() as path,):
                self.fill(data, max_bytes)  # raises an error if the value is too large
                return path.value(data)
            case _:
                return self.fill(data, max_bytes)


def _placeholder(text: str, opened: int, variables: Collection[str]) -> tuple[str | Path, int]:
    begin = at = _after_blank(text, opened + len(_OPEN))
    part: str | Path
    if quoted := _TEXT.match(text, at):
        part, at = _unquoted(text, quoted[0], at), quoted.end()
    else:
        name = _NAME.match(text, at)
        if name is None:
            _refuse(text, at, "a placeholder is a path, as in {{ event.data.tool }}")
        if name[0] not in variables:
            known = ", ".join(sorted(variables))
            _refuse(text, at, f"there is no variable {name[0]!r}; a path begins with {known}")
        steps: list[str | int] = [name[0]]
        at = name.end()
        while step := _STEP.match(text, at):
            steps.append(_step(text, step))
            at = step.end()
        if len(steps) > MAX_STEPS:
            _refuse(text, begin, f"a path has at most {MAX_STEPS} steps")
        part = Path(text[begin:at], tuple(steps))
    at = _after_blank(text, at)
    if not text.startswith(_CLOSE, at):
        reason = "a placeholder has a path only, without operators and functions, and ends with }}"
        _refuse(text, at, reason)
    return part, at + len(_CLOSE)


def _step(text: str, step: re.Match[str]) -> str | int:
    if step["name"] is not None:
        return step["name"]
    if step["index"] is not None:
        return int(step["index"])
    return _unquoted(text, step["key"], step.start("key"))


def _unquoted(text: str, quoted: str, at: int) -> str:
    try:
        return str(json.loads(quoted))
    except json.JSONDecodeError:
        _refuse(text, at, "a text in a placeholder is written as in JSON")


def _after_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank is not None else at


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _refuse(text: str, at: int, reason: str) -> NoReturn:
    before = text[:at]
    line_start = before.rfind("\n") + 1
    raise ExpressionError(reason, Position(before.count("\n") + 1, at - line_start + 1))
