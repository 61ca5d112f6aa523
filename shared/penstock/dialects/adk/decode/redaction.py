"""Keeps credentials out of drafts.

ADK up to 1.39 writes OAuth client secrets unencrypted into the frames that request a credential.
ADK up to 1.39 also repeats the credentials of the session's state in every state delta. ADK 2.13
does neither of these.
"""

from __future__ import annotations

import re

from penstock.dialects.base import Json

REDACTED = "[redacted]"

# The number of levels that `redacted` searches. Values below these levels are replaced; no
# credential is nested so deeply. The recursion needs a limit, because orjson can read JSON that is
# nested more deeply than Python can recurse.
_MAX_DEPTH = 64

# Pieces of JSON that show that a frame may contain a credential. Each piece includes the quotes
# around the key. If a model's text contains such a key, its quotes are escaped, so the text does
# not match.
_MARKS = (
    b'"adk_request_credential"',
    b'"requestedAuthConfigs":{"',
    b'"authType"',
    b'"auth_type"',
    b'"authScheme"',
    b'"auth_scheme"',
)

# The secret fields of ADK's credential models (`repr=False` in auth_credential.py), in lower case
# and without underscores.
_SECRET = frozenset(
    {
        "accesstoken",
        "additionalheaders",
        "apikey",
        "authcode",
        "authresponseuri",
        "clientsecret",
        "codeverifier",
        "idtoken",
        "password",
        "privatekey",
        "privatekeyid",
        "refreshtoken",
        "token",
    }
)

_ASSIGNED = re.compile(
    r"(?i)((?:client_?secret|(?:access|refresh|id)_?token|api_?key|auth_?code|auth_?response_?uri"
    r"|code_?verifier|password|private_?key)"
    r"(?:\\?[\"'])?\s*(?:=\s*(?:\\?[\"'])?|:\s*\\?[\"']))([^\"'\\\s,&})]+)"
)


def may_contain_credentials(data: bytes) -> bool:
    return any(mark in data for mark in _MARKS)


def redacted(value: Json, depth: int = 0) -> Json:
    """Return a copy of the value in which all secret fields, at any depth, are replaced."""
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        return {
            key: REDACTED if _is_secret(key) and inner else redacted(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [redacted(inner, depth + 1) for inner in value]
    return value


def scrubbed(message: str) -> str:
    """Remove secrets; texts of validation errors have them (`api_key='…'`)."""
    return _ASSIGNED.sub(rf"\1{REDACTED}", message)


def _is_secret(key: str) -> bool:
    return key.replace("_", "").lower() in _SECRET
