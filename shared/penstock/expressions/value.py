"""Compiles conditions, and expressions that give a JSON value, and evaluates both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal

from penstock.expressions.errors import ExpressionError, NoExpression, Position, compile_error
from penstock.expressions.evaluation import SUPPORTED, boolean, program_of
from penstock.expressions.library.conversions import MAX_RESULT_BYTES, plain_json, to_time
from penstock.expressions.library.values import Budget, TooMuch, kind_of
from penstock.expressions.required import has_other_text, required_texts
from penstock.expressions.syntax import (
    Call,
    Constant,
    Listed,
    Loop,
    Mapped,
    Name,
    Node,
    Select,
    Tree,
    read_tree,
)
from penstock.expressions.template import EXPRESSION, Embedded, parts_with_expressions

MAX_CHARACTERS: Final = 2000

# The JSON types that an expression can be required to give.
ValueType = Literal["any", "boolean", "text", "object", "list"]
# The types of variables and of their fields. "any" stands for any JSON value.
VariableType = Literal[
    "any",
    "object",
    "text",
    "boolean",
    "integer",
    "number",
    "time",
    "list",
    "objects",
    "texts",
    "booleans",
    "integers",
    "numbers",
]
# A path that an expression reads, such as ("input", "files"). If the expression uses an index, the
# path ends before the index.
ReadPath = tuple[str, ...]
_NOWHERE: Final = 0  # the id of a node that stands for no text, and so has no position
# The step of a `FieldRead` to an element of a list. No field can have this name in an expression.
ELEMENT: Final = "[]"

_GIVES: Final[Mapping[ValueType, tuple[str, type, str]]] = {
    "boolean": ("BOOL", bool, "true or false"),
    "text": ("STRING", str, "a text"),
    "object": ("MAP", dict, "an object"),
    "list": ("LIST", list, "a list"),
}
# The errors of CEL for comparisons of an integer with a double, which the evaluator can compare.
_COMPARED_NUMBERS: Final = re.compile(
    r"found no matching overload for '(?:_[<>!=]=?_|@in)' applied to "
    r"'\((?:int|double), (?:list\()?(?:int|double)\)?\)'"
)


def _environment(types: Mapping[str, VariableType]) -> Any:
    from penstock.expressions import cel_environment  # noqa: PLC0415 - see there

    return cel_environment.with_variables(types)


@dataclass(frozen=True, slots=True)
class FieldRead:
    """A path that an expression reads. Unlike a `ReadPath`, it goes on after an index and into the
    elements of a list that a macro looks at: `event.data.items.exists(i, i.tool == "x")` reads
    ("event", "data", "items", ELEMENT, "tool"). With `is_tested`, the expression only tests with
    `has` whether the field exists."""

    path: ReadPath
    is_tested: bool
    position: Position | None

    @property
    def before_index(self) -> ReadPath:
        return self.path[: self.path.index(ELEMENT)] if ELEMENT in self.path else self.path


@dataclass(frozen=True, slots=True)
class Checked:
    """The tree of an expression, what it reads, and the name of its CEL type. `tested` are the
    paths whose presence the expression tests with `has`; `reads` has them, too."""

    root: Node
    fields: tuple[FieldRead, ...]
    reads: frozenset[ReadPath]
    tested: frozenset[ReadPath]
    type: str


def checked(env: Any, variables: Mapping[str, Any], text: str) -> Checked:
    """Parse and check an expression.

    Raises:
        ExpressionError: the text is no expression, is too long, or uses an unknown variable or
            function.
    """
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(
            f"the expression has {len(text)} characters; at most {MAX_CHARACTERS} are allowed"
        )
    try:
        compiled = env.compile(text)
    except RuntimeError as error:
        raise compile_error(str(error)) or ExpressionError(str(error)) from None
    tree = read_tree(compiled.serialize(), text)
    fields = tuple(_check(tree, variables))
    return Checked(
        tree.root,
        fields,
        frozenset(each.before_index for each in fields),
        frozenset(each.path for each in fields if each.is_tested and ELEMENT not in each.path),
        compiled.return_type().name(),
    )


class Scope:
    """Compiles expressions that may use variables with these names and types, and templates with
    such expressions (decision 0362).

    `fields` has the types of fields of variables, by their paths. With it, `compile` also finds
    operations that these types do not have.
    """

    def __init__(
        self,
        variables: Mapping[str, VariableType],
        fields: Mapping[ReadPath, VariableType] | None = None,
    ) -> None:
        self._variables = dict(variables)
        self._fields = fields or {}

    @cached_property
    def _env(self) -> Any:
        return _environment(self._variables)

    def compile(self, text: str, gives: ValueType = "any") -> ValueExpression:
        """Return the compiled expression, or the compiled template.

        Raises:
            ExpressionError: the text is no expression and no template, is too long, uses an unknown
                variable or function, or gives another type than `gives`.
        """
        try:
            parsed = self._checked(text)
        except NoExpression:
            if EXPRESSION not in text:
                raise
            parsed = self._template(parts_with_expressions(text))
        found = parsed.type
        if gives != "any" and found.partition("<")[0] not in ("DYN", _GIVES[gives][0]):
            wanted = _GIVES[gives][2]
            raise ExpressionError(f"gives {found}, must be {wanted}", Position(1, 1))
        times = frozenset(name for name, type_ in self._variables.items() if type_ == "time")
        return ValueExpression(text, gives, parsed.root, parsed.reads, times, found)

    def _checked(self, text: str) -> Checked:
        parsed = checked(self._env, self._variables, text)
        with_fields = self._environment_with_fields(parsed.reads, parsed.tested)
        return replace(parsed, type=_type_in(with_fields, text) or parsed.type)

    def _template(self, parts: Sequence[str | Embedded]) -> Checked:
        """Return a template as the expression that joins its parts. A placeholder alone is its
        expression."""
        if len(parts) == 1 and isinstance(parts[0], Embedded):
            return parts[0].located(self._checked)
        expressions = [part for part in parts if isinstance(part, Embedded)]
        found = [
            each.located(lambda text: checked(self._env, self._variables, text))
            for each in expressions
        ]
        reads = frozenset[ReadPath]().union(*(each.reads for each in found))
        tested = frozenset[ReadPath]().union(*(each.tested for each in found))
        # One for all, since making an environment takes longer than compiling an expression.
        with_fields = self._environment_with_fields(reads, tested)
        for each in expressions:
            each.located(lambda text: _type_in(with_fields, text))
        roots = iter(each.root for each in found)
        nodes = tuple(
            Constant(_NOWHERE, part)
            if isinstance(part, str)
            else Call(_NOWHERE, "${_}", (next(roots),))
            for part in parts
        )
        joined = Call(_NOWHERE, "join", (Listed(_NOWHERE, nodes),))
        fields = tuple(field for each in found for field in each.fields)
        return Checked(joined, fields, reads, tested, "STRING")

    def _environment_with_fields(self, reads: Set[ReadPath], tested: Set[ReadPath]) -> Any:
        """Return CEL's environment in which the fields that an expression reads have their types;
        None if none of them has a type.

        CEL takes a declared name such as `input.x` for a variable. `has(input.x)` would then be no
        test any more. So a field whose presence the expression tests has no type.
        """
        fields: dict[str, VariableType] = {
            ".".join(path): self._fields[path]
            for path in {begin for path in reads for begin in _begins(path)}
            if path in self._fields and tested.isdisjoint(_begins(path))
        }
        return _environment({**self._variables, **fields}) if fields else None


def _type_in(env: Any, text: str) -> str | None:
    """Return the type of an expression in an environment with the types of fields; None if these
    say nothing about the type.

    Raises:
        ExpressionError: an operation does not exist for the types of its operands.
    """
    if env is None:
        return None
    try:
        return str(env.compile(text).return_type().name())
    except RuntimeError as error:
        mistake = compile_error(str(error), _COMPARED_NUMBERS)
        if mistake is not None:
            raise mistake from None
        return None


class ValueExpression:
    """A compiled expression that gives a JSON value.

    `reads` has the paths that the expression reads. `type` is the name of its CEL type, such as
    `DOUBLE`, or `DYN` if the type is known only when the expression is evaluated.
    """

    def __init__(
        self,
        text: str,
        gives: ValueType,
        root: Node,
        reads: frozenset[ReadPath],
        times: frozenset[str],
        type_: str,
    ) -> None:
        self.text = text
        self.gives = gives
        self.reads = reads
        self.type = type_
        self._program = program_of(root)
        self._times = times

    def evaluate(self, scope: Mapping[str, Any], budget: Budget | None = None) -> Any:
        """Return the expression's value: None, a boolean, a number, a text, a list or an object.

        `scope` has the JSON value of each variable that the expression reads. The value of a
        variable of the type "time" is a text such as `2026-11-22T17:00:00Z`. The result may contain
        parts of the scope itself, not copies. So the caller must change neither the scope nor the
        result.

        `budget` has the steps and characters that the evaluation may use. Default: a new budget.

        Raises:
            MissingField: the expression reads a field that the data does not have.
            ExpressionError: an operation fails or takes too much time or memory; or the result has
                the wrong type or is larger than `MAX_RESULT_BYTES`.
        """
        data = dict(scope)
        budget = budget or Budget()
        for name in self._times & data.keys():
            if not isinstance(data[name], datetime):
                data[name] = to_time(budget, data[name])
        try:
            found = self._program(budget, data)
            value = plain_json(found, MAX_RESULT_BYTES)
        except TooMuch as error:
            raise ExpressionError(f"the expression is given up, since {error}") from None
        except RecursionError:
            raise ExpressionError("the data is nested too deep") from None
        if self.gives != "any" and not isinstance(value, _GIVES[self.gives][1]):
            raise ExpressionError(f"gives {kind_of(value)}, must be {_GIVES[self.gives][2]}")
        return value


def _begins(path: ReadPath) -> list[ReadPath]:
    """Return the path's fields and the path itself: `a.b` and `a.b.c` of `a.b.c`."""
    return [path[:size] for size in range(2, len(path) + 1)]


def _check(tree: Tree, variables: Mapping[str, Any]) -> Iterator[FieldRead]:
    """Yield what a tree reads.

    Raises:
        ExpressionError: the tree has a function that values may not use.
    """
    # With each node come the variables of the macros around it, each with the path of its value.
    open_: list[tuple[Node, Mapping[str, ReadPath | None]]] = [(tree.root, {})]
    while open_:
        node, inner = open_.pop()
        if (path := _path(node, inner)) is not None:
            if path[0] not in variables:  # the path is the name of a type, such as `string`
                raise ExpressionError(f"{path[0]} is no variable", tree.position(node))
            is_tested = isinstance(node, Select) and node.is_test
            yield FieldRead(path, is_tested, tree.position(node))
            continue
        match node:
            case Constant() | Name():
                pass
            case Select(_, operand):
                open_.append((operand, inner))
            case Call(_, function, arguments):
                if function not in SUPPORTED:
                    raise ExpressionError(f"{function} is not supported", tree.position(node))
                open_ += [(each, inner) for each in arguments]
            case Listed(_, elements):
                open_ += [(each, inner) for each in elements]
            case Mapped(_, entries):
                open_ += [(each, inner) for entry in entries for each in entry]
            case Loop(_, _, variable, range_, each):
                open_.append((range_, inner))
                listed = _path(range_, inner)
                element = (*listed, ELEMENT) if listed is not None else None
                open_ += [(part, {**inner, variable: element}) for part in each]


def _path(node: Node, inner: Mapping[str, ReadPath | None]) -> ReadPath | None:
    """Return the path of a node that is a chain of names and numbers, such as `input.files[0]`;
    None for any other node. `inner` has the paths of the variables of macros; None for a value that
    is no path."""
    steps: list[str] = []
    while True:
        match node:
            case Select(_, operand, field):
                steps.append(field)
            case Call(_, "_[_]", (operand, Constant(_, int()))):
                steps.append(ELEMENT)
            case Name(_, name):
                begin = inner.get(name, (name,))
                return (*begin, *reversed(steps)) if begin is not None else None
            case _:
                return None
        node = operand


class Conditions:
    """Compiles conditions that use variables of the given names and types.

    Without types, each variable is an object with text keys: `Conditions(["event"])` compiles
    conditions such as `event.data.tool == "delete_file"`.
    """

    def __init__(self, variables: Iterable[str] | Mapping[str, VariableType]) -> None:
        typed: Mapping[str, VariableType] = (
            variables if isinstance(variables, Mapping) else dict.fromkeys(variables, "object")
        )
        self._variables = typed

    @cached_property
    def _env(self) -> Any:
        return _environment(self._variables)

    def compile(self, text: str) -> Condition:
        """Return the compiled condition.

        Raises:
            ExpressionError: the text is no expression, is too long, uses an unknown variable or
                function, or gives no boolean.
        """
        parsed = checked(self._env, self._variables, text)
        if parsed.type != "BOOL":
            raise ExpressionError(_not_boolean(parsed.type), Position(1, 1))
        return Condition(text, parsed.root, parsed.fields)


class Condition:
    """A compiled condition. `required` has the texts that fields of the data must have for the
    condition to hold, and `fields` what the condition reads."""

    def __init__(self, text: str, root: Node, fields: tuple[FieldRead, ...]) -> None:
        self.text = text
        self.fields = fields
        self.required = required_texts(root)
        self._program = program_of(root)

    def holds(self, data: Mapping[str, Any], budget: Budget | None = None) -> bool:
        """Return whether the condition holds for the data.

        `data` has the JSON value of each variable; the value of a time is a datetime. `budget` has
        the steps and characters that the evaluation may use. Default: a new budget.

        Raises:
            MissingField: the condition reads a field that the data does not have.
            ExpressionError: an operation fails.
            TooMuch: the evaluation needs more than the budget.
        """
        # Most conditions require a certain text, such as the name of a tool. If the data has
        # another text, no evaluation is needed.
        for path, text in self.required:
            if has_other_text(data, path, text):
                return False
        try:
            return boolean(self._program(budget or Budget(), data))
        except RecursionError:
            raise ExpressionError("the data is nested too deep") from None


def _not_boolean(found: str) -> str:
    if found == "DYN":
        return "the condition gives a value of unknown type; compare it, as in event.data.x == true"
    return f"the condition gives {found}, not true or false"
