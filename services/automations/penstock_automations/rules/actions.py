"""Defines the actions `run` and `decide` of a rule; the webhook is in `model`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import AfterValidator, Field

from penstock.expressions import ExpressionError, Template
from penstock.validation import Part

VARIABLES: Final = ("event",)
MAX_INPUT_BYTES: Final = 16 * 1024
MAX_INPUT_TEXTS: Final = 100
MAX_INPUT_DEPTH: Final = 20
MAX_FILLED_BYTES: Final = 256 * 1024


def _is_template(text: str) -> str:
    Template.compile(text, VARIABLES)
    return text


def _is_input(value: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(orjson.dumps(value))
    except TypeError as error:
        raise ValueError(f"the input is not JSON: {error}") from None
    if size > MAX_INPUT_BYTES:
        raise ValueError(f"the input has at most {MAX_INPUT_BYTES} bytes")
    texts = 0

    def check(text: str) -> str:
        nonlocal texts
        texts += 1
        if texts > MAX_INPUT_TEXTS:
            raise ValueError(f"the input has at most {MAX_INPUT_TEXTS} texts")
        return _is_template(text)

    _mapped(value, check)
    return value


TemplateText = Annotated[str, AfterValidator(_is_template)]


class RunAction(Part):
    """Starts a run of the rule's owner. Texts may have placeholders: `{{ event.data.tool }}`."""

    agent: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,128}$", description="The id of the agent in the configuration."
    )
    message: TemplateText = Field(
        min_length=1, description="The message for the agent, a text with placeholders."
    )
    session_id: TemplateText | None = Field(
        None,
        min_length=1,
        description="The owner's session that the run belongs to, a text with placeholders. "
        "Without it, each run has a session of its own.",
    )
    input: Annotated[dict[str, Any], AfterValidator(_is_input)] | None = Field(
        None,
        description="Further fields for the agent, as in `POST /v1/runs`. Its texts may have "
        "placeholders; a text that is one placeholder alone becomes the value itself.",
    )

    @property
    def has_placeholders_in_input(self) -> bool:
        """Whether the input has placeholders, so that it depends on the event."""
        return b"{{" in orjson.dumps(self.input)


class DecideAction(Part):
    """Decides all items of an approval, with the rights of the rule's owner."""

    decision: Literal["approve", "reject"] = Field(description="The decision of every item.")
    note: TemplateText | None = Field(
        None, min_length=1, description="A note for the record, a text with placeholders."
    )


def filled(text: str, event: Mapping[str, Any]) -> str:
    """Return a text of an action with the event's values in place of the placeholders.

    Raises:
        ExpressionError: the event lacks a field that a placeholder names, or the text is too large.
    """
    return Template.compile(text, VARIABLES).fill({"event": event})


def filled_input(value: Mapping[str, Any] | None, event: Mapping[str, Any]) -> Any:
    """Return the input of a run with the event's values in place of the placeholders.

    Raises:
        ExpressionError: the event lacks a field that a placeholder names, or the input is too
            large.
    """
    data = {"event": event}
    found = _mapped(value, lambda text: Template.compile(text, VARIABLES).value(data))
    if len(orjson.dumps(found)) > MAX_FILLED_BYTES:
        raise ExpressionError(f"the input would be larger than {MAX_FILLED_BYTES} bytes")
    return found


def _mapped(value: Any, change: Callable[[str], Any], path: tuple[str, ...] = ()) -> Any:
    """Return the value with `change` applied to each text in it, but not to names of fields.

    Raises:
        ExpressionError, ValueError: `change` refuses a text; the error names the text's path.
    """
    if len(path) > MAX_INPUT_DEPTH:
        raise ValueError(f"the input is nested at most {MAX_INPUT_DEPTH} deep")
    match value:
        case str():
            try:
                return change(value)
            except ExpressionError as error:
                raise type(error)(f"{'.'.join(path)}: {error.reason}", error.position) from None
        case dict():
            return {name: _mapped(each, change, (*path, name)) for name, each in value.items()}
        case list():
            return [_mapped(each, change, (*path, str(n))) for n, each in enumerate(value)]
        case _:
            return value
