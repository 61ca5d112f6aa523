"""Find the credential of a request. A credential in a place that is not allowed is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

from penstock.web.problems import invalid_request, invalid_token

URL_NAMES: Final = frozenset({"token", "access_token"})
MAX_PARAMETERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Credential:
    """The credential of a request, before it is checked."""

    kind: Literal["bearer", "cookie", "stream_token"]
    value: str


def find(scope: Mapping[str, Any], cookie_name: str, *, stream_token: bool) -> Credential | None:
    """Return the request's credential; None if the request has none.

    With `stream_token`, a stream token in the URL is allowed. The header `Authorization` takes
    precedence over the cookie, because browsers send the cookie with every request.

    Raises Problem 401 for a JWT in the URL, or for any token in the URL if the route does not
    accept one. Raises Problem 400 for contradicting credentials.
    """
    in_url = _in_url(scope)
    bearer = _bearer(scope)
    if in_url is not None:
        if _looks_like_jwt(in_url):
            raise invalid_token("a JSON Web Token is never accepted in a URL; use Authorization")
        if not stream_token:
            raise invalid_token("a token in the URL opens GET event streams only")
        if bearer is not None:
            raise invalid_request("there is a token in the URL and one in Authorization")
        return Credential("stream_token", in_url)
    if bearer is not None:
        return Credential("bearer", bearer)
    cookie = cookie_of(scope, cookie_name)
    return None if cookie is None else Credential("cookie", cookie)


def cookie_of(scope: Mapping[str, Any], name: str) -> str | None:
    """Return the value of the cookie with this name; None if there is no such cookie.

    Raises Problem 400 if there are two cookies with this name, because another site may have set
    one of them.
    """
    pairs = "; ".join(headers_of(scope, b"cookie")).split(";")
    named = [pair.partition("=") for pair in pairs]
    values = [value.strip() for key, _, value in named if key.strip() == name]
    if len(values) > 1:
        raise invalid_request("there are two cookies of the same name")
    return values[0] if values else None


def headers_of(scope: Mapping[str, Any], name: bytes) -> list[str]:
    """Return the values of all headers with this name. `name` must be in lower case."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def header_of(scope: Mapping[str, Any], name: bytes) -> str | None:
    """Return the header's value; None if there is no such header or more than one."""
    values = headers_of(scope, name)
    return values[0] if len(values) == 1 else None


def _bearer(scope: Mapping[str, Any]) -> str | None:
    values = headers_of(scope, b"authorization")
    if not values:
        return None
    if len(values) > 1:
        raise invalid_request("there are two Authorization headers")
    scheme, _, value = values[0].partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        raise invalid_token("Authorization must be Bearer and a token")
    return value.strip()


def _in_url(scope: Mapping[str, Any]) -> str | None:
    query = scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise invalid_request("the URL has too many parameters") from error
    values = [value for name, value in pairs if name in URL_NAMES]
    if len(values) > 1:
        raise invalid_request("there are two tokens in the URL")
    return values[0] if values else None


def _looks_like_jwt(text: str) -> bool:
    return text.startswith("eyJ") or text.count(".") == 2
