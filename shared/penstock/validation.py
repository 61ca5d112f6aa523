"""The base of models that people write, their errors as sentences, guesses, and checks of URLs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails

T = TypeVar("T")

UNKNOWN_FIELD: Final = "there is no such field"
_OBJECT, _LIST, _INTEGER = "must be an object", "must be a list", "must be an integer"
# By the type of pydantic's error. Its own texts are for programmers.
_REASONS: Final = {
    "extra_forbidden": UNKNOWN_FIELD,
    "missing": "is missing",
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dict_type": _OBJECT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "string_type": "must be a text",
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_from_float": _INTEGER,
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
}


Place = tuple[int | str, ...]  # the names of fields and the indexes that lead to a value


class Part(BaseModel):
    """The base of the models that people write. An unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


def with_mistakes(
    value: Any, validate: Callable[[Any], T], mistakes: Iterable[tuple[Place, ValueError]]
) -> T:
    """Return the validated value. Raises ValidationError with these mistakes, each at its place in
    the value, and with those that `validate` finds. So a validator in the mode "wrap" names its own
    mistakes although a field has others."""
    found: list[InitErrorDetails] = [
        {"type": "value_error", "loc": place, "input": None, "ctx": {"error": mistake}}
        for place, mistake in mistakes
    ]
    try:
        made = validate(value)
    except ValidationError as error:
        found += [_again(each) for each in error.errors(include_url=False)]
    if found:
        raise ValidationError.from_exception_data("mistakes", found)
    return made


def _again(error: Any) -> InitErrorDetails:
    again: InitErrorDetails = {"type": error["type"], "loc": error["loc"], "input": error["input"]}
    return {**again, "ctx": error["ctx"]} if "ctx" in error else again


def reason_of(error: Mapping[str, Any]) -> str:
    """Return the reason for one error of pydantic, which has its context, without the field's
    name."""
    if error["type"] in _REASONS:
        return _REASONS[error["type"]].format_map(error.get("ctx") or {})
    return re.sub("^Input should be ", "must be ", error["msg"].removeprefix("Value error, "))


def check_url(url: str, secret_field: str) -> None:
    """Raise ValueError unless the text is an allowed URL of a webhook.

    `secret_field` is the field for credentials. A URL must not contain credentials, because
    everybody who may read the URL would see them. The host's address is not checked here, because
    the address can change. The guard of the automations service checks the address at each
    connection.
    """
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("the URL contains a space or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("the URL must begin with https:// (or http:// for an allowed host)")
    if not parts.hostname:
        raise ValueError("the URL has no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"the URL has a user or password; use `{secret_field}` instead")
    if parts.fragment:
        raise ValueError("the URL has a fragment (#…), which is never sent")
    if port == 0:
        raise ValueError("the port 0 cannot be called")


_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent"}
)
# Headers that are about the connection to the next server, or change how the answer comes.
_CONNECTION_HEADERS: Final = frozenset(
    {
        *("accept-encoding", "expect", "keep-alive", "proxy-authenticate", "proxy-connection"),
        *("te", "trailer", "traceparent", "tracestate", "upgrade"),
    }
)
_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
HEADER_NAME: Final = r"^[A-Za-z0-9-]{1,64}$"
MAX_HEADERS: Final = 20


def is_own_header(name: str) -> bool:
    """Return whether Penstock itself sets this header of a webhook."""
    lower = name.lower()
    return lower in _OWN_HEADERS or lower.startswith(("webhook-", "penstock-"))


def check_header(name: str, secret_field: str) -> None:
    """Raise ValueError unless a webhook may have a header of this name, whose value is no secret.
    `secret_field` is the field for credentials."""
    if is_own_header(name) or name.lower() in _CONNECTION_HEADERS:
        raise ValueError(f"the header {name} cannot be set here")
    if name.lower() in _SECRET_HEADERS:
        raise ValueError(
            f"Penstock shows the headers; give {name} in `{secret_field}`, which is hidden"
        )


def check_headers_differ(names: Iterable[str]) -> None:
    """Raise ValueError if two headers have the same name."""
    lower = [name.lower() for name in names]
    if len(set(lower)) < len(lower):
        raise ValueError("a header is there twice: upper and lower case make no difference")


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """Return `: did you mean "…"?` if a known name is similar to `asked`; else an empty text."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(asked.lower()[:128], folded, n=1)
    return f': did you mean "{folded[close[0]]}"?' if close else ""


def fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the names of the fields at a path of values of this model, for `did_you_mean`."""
    parts: list[Any] = [model]
    for step in path:
        parts = [inner for part in parts for inner in types_inside(part, step)]
    return [name for part in parts for name in fields_of(part) or ()]


def fields_of(part: Any) -> list[str] | None:
    """Return the names of the fields of a model; None for any other type."""
    if not isinstance(part, type) or not issubclass(part, BaseModel):
        return None
    return [field.alias or name for name, field in part.model_fields.items()]


def types_inside(part: Any, step: int | str) -> Iterator[Any]:
    """Yield the types of the value at a step of a path: a field's name, an index or a key."""
    if isinstance(part, type) and issubclass(part, BaseModel):
        for name, field in part.model_fields.items():
            if step in (name, field.alias):
                yield from _choices(field.annotation)
    elif get_origin(part) in (list, tuple, dict):
        yield from _choices(get_args(part)[-1])


def _choices(part: Any) -> Iterator[Any]:
    if get_origin(part) is Annotated:
        yield from _choices(get_args(part)[0])
    elif get_origin(part) in (Union, UnionType):
        for each in get_args(part):
            yield from _choices(each)
    else:
        yield part
