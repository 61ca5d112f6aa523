"""Check which arguments a decision changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.dialects.approvals import have_same_args

MAX_PATHS: Final = 10_000


class NotEditable(ValueError):
    """The error for a decision that changes an argument which the policy does not allow to be
    edited."""


def check_edit(asked: Mapping[str, Any], edited: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raise NotEditable if the decision changes an argument that must not be changed, or changes
    the JSON type of an argument.

    `allowed` has paths such as `args.memo`. A path also allows all values below it, and `args.*`
    allows all arguments.
    """
    patterns = [tuple(pattern.removesuffix(".*").split(".")[1:]) for pattern in allowed]
    for path, before, after in _differences(asked, edited):
        name = ".".join(("args", *path))
        if not any(path[: len(pattern)] == pattern for pattern in patterns):
            may = ", ".join(allowed) or "nothing"
            raise NotEditable(f"{name} may not be edited; the policy allows {may}")
        if before is not None and after is not None and _type(before) != _type(after):
            raise NotEditable(f"{name} must stay a JSON {_type(before)}")


def is_same(asked: Mapping[str, Any], edited: Mapping[str, Any]) -> bool:
    """Return whether the arguments are the same, apart from arguments that are null."""
    return have_same_args(dict(asked), dict(edited))


def _differences(
    asked: Mapping[str, Any], edited: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each path at which the values differ, with both values.

    None stands for a missing value.
    """
    pairs: list[tuple[tuple[str, ...], Any, Any]] = [((), dict(asked), dict(edited))]
    for _ in range(MAX_PATHS):
        if not pairs:
            return
        path, before, after = pairs.pop()
        if isinstance(before, dict) and isinstance(after, dict):
            names = sorted({*before, *after})
            pairs += [((*path, name), before.get(name), after.get(name)) for name in names]
        elif not have_same_args({"": before}, {"": after}):
            yield path, before, after
    raise NotEditable(f"the arguments have more than {MAX_PATHS} values")


def _type(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
