"""The scopes of callers. No scope implies another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

Permission = Literal["start", "read", "raw", "decide", "act-as", "administer"]

SCOPES: Final = frozenset({"start", "read", "raw", "decide", "act-as", "administer"})
# the scopes of a token without a scope claim
DEFAULT: Final = frozenset({"start", "read", "raw", "decide"})
ANONYMOUS: Final = DEFAULT | {"act-as"}
STREAM_TOKEN: Final = frozenset({"read"})

# RFC 8693 names the claim `scope`, a string. Some issuers write a list, or use another name.
CLAIMS: Final = ("scope", "scopes", "scp")


def granted(claims: Mapping[str, Any], default: frozenset[str] = DEFAULT) -> frozenset[str]:
    """The scopes of these claims, `default` where none of them names any.

    Words that are not ours are other services'.

    Raises ValueError for a claim that is neither a string nor a list of strings.
    """
    found = [claims[name] for name in CLAIMS if name in claims]
    if not found:
        return default
    return frozenset(word for claim in found for word in _words(claim)) & SCOPES


def _words(claim: Any) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list) and all(isinstance(word, str) for word in claim):
        return claim
    raise ValueError("the scope claim is neither a string nor a list of strings")
