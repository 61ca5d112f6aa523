"""Compiles and fills templates, which are texts with placeholders such as `{{ event.data.tool }}`.

Pure.

A placeholder of rules is a path into the data, or a text in double quotes. In a template, the
characters `{{` are written as `{{ "{{" }}`. Templates have no operators and no functions. So the
time and the memory for filling a template are proportional to the size of the template and of the
inserted values.

A placeholder of workflows is an expression, as in `Hello ${input.who}`: `parts_with_expressions`.
The module `value` compiles these, since an evaluation has a budget.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from penstock.expressions.errors import ExpressionError, MissingField, Position

MAX_CHARACTERS: Final = 10_000  # the greatest length of a template
MAX_PLACEHOLDERS: Final = 50
MAX_STEPS: Final = 20  # the greatest number of names and indexes in a path
MAX_RESULT_BYTES: Final = 64 * 1024

T = TypeVar("T")

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
        return cls(_parts(text, _OPEN, lambda opened: _placeholder(text, opened, variables)))

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


def _parts(text: str, mark: str, read: Callable[[int], tuple[T, int]]) -> tuple[str | T, ...]:
    """Return the parts of a template. `read` gets the position of a `mark`, and returns the
    placeholder that begins there, and the position after it."""
    parts: list[str | T] = []
    at = placeholders = 0
    while (opened := text.find(mark, at)) >= 0:
        placeholders += 1
        if placeholders > MAX_PLACEHOLDERS:
            _refuse(text, opened, f"a template has at most {MAX_PLACEHOLDERS} placeholders")
        part, end = read(opened)
        parts += [text[at:opened], part]
        at = end
    return tuple(part for part in (*parts, text[at:]) if part != "")


@dataclass(frozen=True, slots=True)
class Embedded:
    """An expression in a template, and where it begins in the template."""

    text: str
    start: Position

    def located(self, compile: Callable[[str], T]) -> T:
        """Return what `compile` makes of the expression. Raises its ExpressionError with the
        position in the template."""
        try:
            return compile(self.text)
        except ExpressionError as error:
            where, start = error.position or Position(1, 1), self.start
            column = where.column + (start.column - 1 if where.line == 1 else 0)
            place = Position(where.line + start.line - 1, column)
            raise ExpressionError(error.reason, place) from None


EXPRESSION: Final = "${"  # begins a placeholder with an expression
# Finds the end of such a placeholder: braces, and the texts in which braces mean nothing.
_TOKEN: Final = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}]""")


def parts_with_expressions(text: str) -> tuple[str | Embedded, ...]:
    """Return the plain texts and the expressions of a template such as `Hello ${input.who}`. Raises
    ExpressionError for a placeholder without an end, and for more than `MAX_PLACEHOLDERS`."""
    return _parts(text, EXPRESSION, lambda opened: _embedded(text, opened))


def _embedded(text: str, opened: int) -> tuple[Embedded, int]:
    begin, depth = opened + len(EXPRESSION), 0
    for token in _TOKEN.finditer(text, begin):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}" and depth:
            depth -= 1
        elif token[0] == "}":
            return Embedded(text[begin : token.start()], _position(text, begin)), token.end()
    _refuse(text, opened, "the placeholder has no end: } is missing")


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
    raise ExpressionError(reason, _position(text, at))


def _position(text: str, at: int) -> Position:
    before = text[:at]
    line_start = before.rfind("\n") + 1
    return Position(before.count("\n") + 1, at - line_start + 1)
