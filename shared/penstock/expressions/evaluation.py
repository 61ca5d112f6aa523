"""Turns the syntax tree of an expression into a program, which gives a value within a budget. Pure.

The CEL runtime cannot be interrupted, lets no other thread run meanwhile, and copies lists and data
without a limit. For example, `a.map(i, i)` takes two seconds for a list of 9,000 numbers. So the
runtime only parses and checks expressions. The programs of this module count each step and each new
text. Tests compare their results with the results of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.functions import FUNCTIONS
from penstock.expressions.library.operators import select
from penstock.expressions.library.values import KEYS_PER_STEP, Budget, Function, kind_of
from penstock.expressions.syntax import Call, Constant, Listed, Loop, Mapped, Name, Node, Select

Variables = Mapping[str, Any]
# Called with the budget and the variables. Raises ExpressionError if an operation fails, and
# TooMuch if the evaluation needs more than the budget.
Program = Callable[[Budget, Variables], Any]


def program_of(node: Node) -> Program:
    return _BY_TYPE[type(node)](node)


def boolean(found: Any) -> bool:
    if found is True or found is False:
        return bool(found)
    raise ExpressionError(f"a condition must be true or false, not {kind_of(found)}")


def _constant(node: Constant) -> Program:
    def run(budget: Budget, variables: Variables) -> Any:
        budget.take()
        return node.value

    return run


def _path(node: Name | Select) -> Program:
    fields: list[str] = []
    inner: Node = node
    while isinstance(inner, Select) and not inner.is_test:
        fields.insert(0, inner.field)
        inner = inner.operand
    name = inner.name if isinstance(inner, Name) else ""
    first = None if name else program_of(inner)
    steps = len(fields) + (first is None)

    def run(budget: Budget, variables: Variables) -> Any:
        budget.take(steps)
        if first is not None:
            value = first(budget, variables)
        elif name in variables:
            value = variables[name]
        else:
            raise ExpressionError(f"the variable {name} has no value")
        for field in fields:
            if type(value) is dict and field in value:
                value = value[field]
            else:
                value = select(budget, value, field)
        return value

    return run


def _select(node: Select) -> Program:
    if not node.is_test:
        return _path(node)
    operand, field = program_of(node.operand), node.field

    def run(budget: Budget, variables: Variables) -> bool:
        budget.take()
        value = operand(budget, variables)
        if not isinstance(value, dict):
            raise ExpressionError(f"{kind_of(value)} has no field {field!r}")
        return field in value

    return run


def _call(node: Call) -> Program:
    arguments = [program_of(each) for each in node.arguments]
    if (lazy := _LAZY.get(node.function)) is not None:
        return lazy(arguments)
    function: Function = FUNCTIONS[node.function]
    if len(arguments) != 2:

        def run(budget: Budget, variables: Variables) -> Any:
            budget.take()
            return function(budget, *[each(budget, variables) for each in arguments])

        return run
    one, other = arguments

    # Most calls are operators with two operands, for which this is faster.
    def run_two(budget: Budget, variables: Variables) -> Any:
        budget.take()
        return function(budget, one(budget, variables), other(budget, variables))

    return run_two


def _listed(node: Listed) -> Program:
    elements = [program_of(each) for each in node.elements]

    def run(budget: Budget, variables: Variables) -> list[Any]:
        budget.take()
        return [each(budget, variables) for each in elements]

    return run


def _mapped(node: Mapped) -> Program:
    entries = [(program_of(key), program_of(each)) for key, each in node.entries]

    def run(budget: Budget, variables: Variables) -> dict[str, Any]:
        budget.take()
        found: dict[Any, Any] = {}
        for key, each in entries:
            name = key(budget, variables)
            if not isinstance(name, str | bool | int):
                raise ExpressionError(
                    f"a key of a map must be a text, an integer or a boolean, not {kind_of(name)}"
                )
            if name in found:
                raise ExpressionError(f"the key {str(name)[:100]!r} is in the map twice")
            found[name] = each(budget, variables)
        return found

    return run


def _loop(node: Loop) -> Program:
    range_, each = program_of(node.range), [program_of(one) for one in node.each]
    variable, macro, act = node.variable, node.macro, _MACROS[node.macro]

    def run(budget: Budget, variables: Variables) -> Any:
        budget.take()
        elements = range_(budget, variables)
        if not isinstance(elements, list | dict):
            raise ExpressionError(f"{macro} takes a list or an object, not {kind_of(elements)}")
        if isinstance(elements, dict):
            # CEL leaves the order of an object's keys open, and its runtime takes another order
            # each time. A workflow must give the same value in every process.
            budget.take(len(elements) // KEYS_PER_STEP)
            elements = sorted(elements, key=_place)
        inner = dict(variables)

        def scopes() -> Iterable[Variables]:
            for element in elements:
                inner[variable] = element
                yield inner

        return act(budget, scopes(), each)

    return run


def _place(key: Any) -> tuple[str, Any]:
    """Return the place of a map's key: first booleans, then texts, then integers."""
    return kind_of(key), key


def _conditional(arguments: Sequence[Program]) -> Program:
    condition, yes, no = arguments

    def run(budget: Budget, variables: Variables) -> Any:
        budget.take()
        chosen = yes if boolean(condition(budget, variables)) else no
        return chosen(budget, variables)

    return run


def _and(arguments: Sequence[Program]) -> Program:
    def run(budget: Budget, variables: Variables) -> bool:
        budget.take()
        return not _decided(budget, ((each, variables) for each in arguments), False)

    return run


def _or(arguments: Sequence[Program]) -> Program:
    def run(budget: Budget, variables: Variables) -> bool:
        budget.take()
        return _decided(budget, ((each, variables) for each in arguments), True)

    return run


def _decided(budget: Budget, conditions: Iterable[tuple[Program, Variables]], wanted: bool) -> bool:
    """Return whether a condition gives `wanted`. As in CEL, an error in one condition is ignored if
    another condition gives `wanted`."""
    failure: ExpressionError | None = None
    for condition, variables in conditions:
        try:
            if boolean(condition(budget, variables)) is wanted:
                return True
        except ExpressionError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return False


_Scopes = Iterable[Variables]


def _all(budget: Budget, scopes: _Scopes, each: Sequence[Program]) -> bool:
    return not _decided(budget, ((each[0], scope) for scope in scopes), False)


def _exists(budget: Budget, scopes: _Scopes, each: Sequence[Program]) -> bool:
    return _decided(budget, ((each[0], scope) for scope in scopes), True)


def _exists_one(budget: Budget, scopes: _Scopes, each: Sequence[Program]) -> bool:
    return sum(boolean(each[0](budget, scope)) for scope in scopes) == 1


def _map(budget: Budget, scopes: _Scopes, each: Sequence[Program]) -> list[Any]:
    *conditions, element = each
    return [
        element(budget, scope)
        for scope in scopes
        if all(boolean(one(budget, scope)) for one in conditions)
    ]


_MACROS: Final[Mapping[str, Callable[[Budget, _Scopes, Sequence[Program]], Any]]] = {
    "all": _all,
    "exists": _exists,
    "exists_one": _exists_one,
    "map": _map,
}
_BY_TYPE: Final[Mapping[type, Callable[[Any], Program]]] = {
    Constant: _constant,
    Name: _path,
    Select: _select,
    Call: _call,
    Listed: _listed,
    Mapped: _mapped,
    Loop: _loop,
}
_LAZY: Final[Mapping[str, Callable[[Sequence[Program]], Program]]] = {
    "_&&_": _and,
    "_||_": _or,
    "_?_:_": _conditional,
}
SUPPORTED: Final = frozenset(FUNCTIONS) | _LAZY.keys()
