"""Makes and checks secrets of Standard Webhooks, and tokens. Pure, except for random texts."""

from __future__ import annotations

import base64
import binascii
import secrets
import string
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, JsonValue

HIDDEN: Final = "(hidden)"  # the text that is shown in place of a secret
# The mark of model fields that hold secrets. The mark appears in the OpenAPI document, too.
WRITE_ONLY: Final[dict[str, JsonValue]] = {"writeOnly": True}
PREFIX: Final = "whsec_"
MIN_BYTES, MAX_BYTES = 24, 64
_MADE_CHARACTERS = 32
_LETTERS = string.ascii_letters + string.digits


def origin_of(url: str) -> tuple[str, str]:
    """Return the scheme and the server of a URL; two empty texts for a text that is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme.lower(), parts.netloc.lower()


def new_secret() -> str:
    """Return a new secret of 190 bits. Its bytes are ASCII text, because n8n's Crypto node can hold
    a secret only as text."""
    text = "".join(secrets.choice(_LETTERS) for _ in range(_MADE_CHARACTERS))
    return PREFIX + base64.b64encode(text.encode()).decode()


def new_token() -> str:
    """Return a new token for callers of a hook that cannot sign."""
    return "pht_" + "".join(secrets.choice(_LETTERS) for _ in range(_MADE_CHARACTERS))


def check_secret(secret: str) -> None:
    """Raise ValueError unless the text is a secret. The error does not contain the secret."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"a secret begins with {PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"a secret is {PREFIX} and base64; this is not base64") from None
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise ValueError(
            f"a secret has {MIN_BYTES} to {MAX_BYTES} bytes before base64; this has {len(key)}"
        )


def _checked(secrets_: list[str]) -> list[str]:
    for secret in secrets_:
        check_secret(secret)
    return secrets_


Secrets = Annotated[list[str], AfterValidator(_checked)]
