"""Takes the credentials of an agent's configuration out of texts. Pure."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.redaction import is_secret, without
from penstock.settings import ServerAgent

MIN_CHARACTERS: Final = 6  # of a secret; a shorter one would also match ordinary words


def without_secrets(agent: ServerAgent, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a lost leg without the agent's credentials.

    The credentials must not be in a source frame, because clients with the scope `raw` read source
    frames.
    """
    secrets = _secrets(agent)
    return {
        name: without(value, secrets) if isinstance(value, str) else value
        for name, value in facts.items()
    }


def _secrets(agent: ServerAgent) -> list[str]:
    values = [value for name, value in agent.headers.items() if is_secret(name)]
    values += [value.rpartition(" ")[2] for value in values]  # "Bearer …" without its scheme
    at = urlsplit(agent.url)
    values += [unquote(at.password or ""), at.password or ""]
    return [value for value in dict.fromkeys(values) if len(value) >= MIN_CHARACTERS]
