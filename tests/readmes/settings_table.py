"""Write a settings model as a Markdown table: name, default, allowed values, meaning."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from penstock.settings import AgentBase, AgentOfServer, Settings, variable_name

_MIB, _KIB = 1024 * 1024, 1024


def own_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields that a table shows.

    Fields that every service has and groups of settings are left out.
    """
    shared = (Settings, AgentBase, AgentOfServer)
    bases = [base for base in shared if issubclass(model, base) and model is not base]
    common = {name for base in bases for name in base.model_fields}
    return {
        name: field
        for name, field in model.model_fields.items()
        if name not in common and not _is_group(field)
    }


def table(model: type[BaseModel]) -> str:
    """Return the table of a settings model.

    A setting is named by its environment variable, another field by its own name.
    """
    is_environment = issubclass(model, BaseSettings)
    lines = [
        f"| {'variable' if is_environment else 'field'} | default | allowed | meaning |",
        "|---|---|---|---|",
    ]
    for name, field in own_fields(model).items():
        shown = variable_name(model, name) if issubclass(model, BaseSettings) else name
        cells = (f"`{shown}`", _default(name, field), _allowed(field), field.description or "")
        lines.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return "\n".join(lines) + "\n"


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings)


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value in (None, "", (), [], {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        value = int(value) if value.is_integer() else value
    if name.endswith("_bytes") and value % _KIB == 0:
        size = f"{value // _MIB} MiB" if value % _MIB == 0 else f"{value // _KIB} KiB"
        return f"{value} ({size})"
    return str(value)


def _allowed(field: FieldInfo) -> str:
    if choices := _choices(field.annotation):
        return ", ".join(f"`{each}`" for each in choices)
    bounds: dict[str, Any] = {}
    for constraint in field.metadata:
        for sign, attribute in (("≥", "ge"), (">", "gt"), ("≤", "le"), ("<", "lt")):
            if (bound := getattr(constraint, attribute, None)) is not None:
                bounds[sign] = int(bound) if float(bound).is_integer() else bound
    if "≥" in bounds and "≤" in bounds:
        return f"{bounds['≥']} to {bounds['≤']}"
    return ", ".join(f"{sign} {bound}" for sign, bound in bounds.items())


def _choices(annotation: Any) -> tuple[Any, ...]:
    if annotation is bool:
        return ("true", "false")
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return tuple(each for part in get_args(annotation) for each in _choices(part))
    return ()
