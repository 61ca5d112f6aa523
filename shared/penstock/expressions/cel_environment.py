"""Makes the environments in which CEL parses and checks expressions.

Only a function that needs one imports this module: CEL and its environments take 12 MiB, and most
processes have no rule, policy or budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_math

_DYN, _TEXT = cel.Type.DYN, cel.Type.STRING
_OBJECT: Final = cel.Type.Map(_TEXT, _DYN)
_TYPES: Final[Mapping[str, Any]] = {
    "any": _DYN,
    "object": _OBJECT,
    "text": _TEXT,
    "boolean": cel.Type.BOOL,
    "integer": cel.Type.INT,
    "number": cel.Type.DOUBLE,
    "time": cel.Type.TIMESTAMP,
    "list": cel.Type.List(_DYN),
    "objects": cel.Type.List(_OBJECT),
    "texts": cel.Type.List(_TEXT),
    "booleans": cel.Type.List(cel.Type.BOOL),
    "integers": cel.Type.List(cel.Type.INT),
    "numbers": cel.Type.List(cel.Type.DOUBLE),
}
# What Penstock adds to CEL's own functions: by name, the types of the receiver, the arguments, and
# the result of each form. The functions of texts and lists are those of CEL's extensions.
_INT, _LIST, _TEXTS = cel.Type.INT, cel.Type.List(_DYN), cel.Type.List(_TEXT)
_METHODS: Final[Mapping[str, Sequence[tuple[Any, ...]]]] = {
    "join": [(_LIST, _TEXT), (_LIST, _TEXT, _TEXT)],
    "split": [(_TEXT, _TEXT, _TEXTS), (_TEXT, _TEXT, _INT, _TEXTS)],
    "replace": [(_TEXT, _TEXT, _TEXT, _TEXT), (_TEXT, _TEXT, _TEXT, _INT, _TEXT)],
    "lowerAscii": [(_TEXT, _TEXT)],
    "upperAscii": [(_TEXT, _TEXT)],
    "trim": [(_TEXT, _TEXT)],
    "substring": [(_TEXT, _INT, _TEXT), (_TEXT, _INT, _INT, _TEXT)],
    "charAt": [(_TEXT, _INT, _TEXT)],
    "indexOf": [(_TEXT, _TEXT, _INT), (_TEXT, _TEXT, _INT, _INT)],
    "lastIndexOf": [(_TEXT, _TEXT, _INT), (_TEXT, _TEXT, _INT, _INT)],
    "reverse": [(_TEXT, _TEXT), (_LIST, _LIST)],
    **{name: [(_LIST, _LIST)] for name in ("sort", "distinct", "flatten")},
    **{name: [(_LIST, _DYN)] for name in ("sum", "min", "max")},
    "slice": [(_LIST, _INT, _INT, _LIST)],
}
_PLAIN: Final = {"json": (_DYN, _TEXT), "parseJson": (_TEXT, _DYN)}


def _declared(name: str, forms: Sequence[tuple[Any, ...]], *, is_member: bool) -> Any:
    overloads = [
        cel.Overload(f"{name}_{place}", gives, parameters, is_member)
        for place, (*parameters, gives) in enumerate(forms)
    ]
    return cel.FunctionDecl(name, overloads)


_FUNCTIONS: Final = [
    *(_declared(name, forms, is_member=True) for name, forms in _METHODS.items()),
    *(_declared(name, [form], is_member=False) for name, form in _PLAIN.items()),
]
_MATH: Final = [ext_math.ExtMath()]
_SEARCHED: Final = cel.NewEnv(variables={"pattern": _TEXT, "text": _TEXT})
_FOUND: Final = _SEARCHED.compile("text.matches(pattern)")


def with_variables(types: Mapping[str, str]) -> Any:
    """Return an environment with variables of these `VariableType`s, and the functions that an
    expression may call."""
    variables = {name: _TYPES[type_] for name, type_ in types.items()}
    return cel.NewEnv(variables=variables, functions=_FUNCTIONS, extensions=_MATH)


def found(pattern: str, text: str) -> Any:
    """Return whether a text has a part that a pattern of RE2 matches.

    Raises RuntimeError or ValueError if RE2 does not know the pattern.
    """
    return _FOUND.eval(_SEARCHED.Activation({"pattern": pattern, "text": text})).value()
