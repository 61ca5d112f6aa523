"""Removes the credentials of an agent's configuration from texts. Pure."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.redaction import is_secret, without
from penstock.settings import ServerAgent

# the least number of characters of a secret that is removed; a shorter secret would also match
# ordinary words
MIN_CHARACTERS: Final = 6


def without_secrets(agent: ServerAgent, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a lost leg without the agent's credentials. The facts are stored in a
    source frame, and clients with the scope `raw` can read source frames."""
    secrets = _secrets(agent)
    return {
        name: without(value, secrets) if isinstance(value, str) else value
        for name, value in facts.items()
    }


def _secrets(agent: ServerAgent) -> list[str]:
    values = [value for name, value in agent.headers.items() if is_secret(name)]
    # in a value such as "Bearer …", the secret is the part after the scheme
    values += [value.rpartition(" ")[2] for value in values]
    at = urlsplit(agent.url)
    values += [unquote(at.password or ""), at.password or ""]
    return [value for value in dict.fromkeys(values) if len(value) >= MIN_CHARACTERS]
