"""Opens content keys that a key management service (KMS) has wrapped.

A wrapped key of PENSTOCK_CONTENT_KEYS is `kms:<id>:<ciphertext>`. A process asks the service at its
start only: a process that runs goes on while the service is away, and no run waits for it. The id
is that of the key itself, so an answer with another key is refused before anything is sealed.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import orjson

from penstock.bus import NotThereYet, StartUpError
from penstock.bus.sealing import KEY_BYTES, SETTING, master_id
from penstock.settings import ConfigurationError, Settings
from penstock.settings.service import FILE, NONE, WRAPPED
from penstock.web.auth.origins import is_loopback

TIMEOUT_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 64 * 1024
_SHOWN: Final = 200  # the most characters of a refusal that are shown
_OK, _TOO_MANY, _SERVER_ERROR = 200, 429, 500


class KeyService(Protocol):
    """Encrypts and decrypts texts with a key that never leaves the service.

    Both raise NotThereYet if a later attempt may succeed, and StartUpError if the service refuses,
    or answers something else.
    """

    async def wrap(self, text: str) -> str: ...

    async def unwrap(self, wrapped: str) -> str: ...


class Transit:
    """A key of the transit engine of OpenBao or Vault, by the URL that the key has in their API
    (https://openbao.org/api-docs/secret/transit/)."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname):
            raise ConfigurationError(
                "PENSTOCK_KMS_URL: http:// sends keys in clear. Use https://, or an address of this"
                " machine"
            )
        mount, _, self._key = url.rpartition("/keys/")
        self._mount, self._token = mount, token
        self._where = f"the key service at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    async def wrap(self, text: str) -> str:
        plain = base64.b64encode(text.encode()).decode()
        return await self._answer("encrypt", {"plaintext": plain}, "ciphertext")

    async def unwrap(self, wrapped: str) -> str:
        plain = await self._answer("decrypt", {"ciphertext": wrapped}, "plaintext")
        try:
            return base64.b64decode(plain, validate=True).decode()
        except ValueError:
            raise StartUpError(f"{self._where} answers what is no key") from None

    async def _answer(self, call: str, body: dict[str, str], field: str) -> str:
        status, content = await self._request(f"{self._mount}/{call}/{self._key}", body)
        try:
            answer: Any = orjson.loads(content)
            found = answer["data"][field] if status == _OK else answer["errors"][0]
        except (ValueError, LookupError, TypeError):
            found = None
        text = found if isinstance(found, str) else ""
        if status == _OK and text:
            return text
        reason = f"{status} for {call}" + (f" ({text[:_SHOWN]!r})" if text else "")
        if status == _TOO_MANY or status >= _SERVER_ERROR:
            raise NotThereYet(f"{self._where} answers {reason}; it may be sealed or starting")
        raise StartUpError(
            f"{self._where} answers {reason}: check PENSTOCK_KMS_URL, and that the policy of "
            "PENSTOCK_KMS_TOKEN allows this key (docs/privacy.md)"
        )

    async def _request(self, url: str, body: dict[str, str]) -> tuple[int, bytes]:
        # Most processes have no wrapped key, and need no HTTP client here.
        import httpx  # noqa: PLC0415

        from penstock.http.transport import new_client  # noqa: PLC0415

        headers = {"x-vault-token": token} if (token := _token(self._token)) else {}
        content = b""
        try:
            async with asyncio.timeout(TIMEOUT_S), new_client(TIMEOUT_S) as http:
                request = http.build_request("POST", url, json=body, headers=headers)
                response = await http.send(request, stream=True)
                async with aclosing(response):
                    async for piece in response.aiter_bytes():
                        content += piece
                        if len(content) > _MAX_ANSWER_BYTES:
                            raise StartUpError(f"{self._where} answers what is no key")
        except TimeoutError as error:
            raise NotThereYet(f"{self._where} does not answer in {TIMEOUT_S:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise NotThereYet(f"{self._where} does not answer: {reason}") from error
        return response.status_code, content


def _token(text: str | None) -> str:
    """Return the token as its file has it now: an agent beside this process may renew it."""
    if text is None or not text.startswith(FILE):
        return text or ""
    try:
        return Path(text.removeprefix(FILE)).read_text().strip()
    except (OSError, UnicodeError) as error:
        raise NotThereYet(f"PENSTOCK_KMS_TOKEN: the file cannot be read: {error}") from None


async def open_content_keys(settings: Settings) -> Settings:
    """Return the settings with all content keys in clear.

    Raises:
        NotThereYet: the key service does not answer.
        StartUpError: it refuses, or answers with another key.
        ConfigurationError: the settings do not fit together.
    """
    if not any(map(is_wrapped, settings.content_keys)):
        return settings
    service = key_service(settings)
    opened = [
        await _opened(service, each) if is_wrapped(each) else each for each in settings.content_keys
    ]
    return settings.model_copy(update={"content_keys": tuple(opened)})


def is_wrapped(key: str) -> bool:
    return key.startswith(WRAPPED)


def key_service(settings: Settings) -> KeyService:
    if settings.kms_url is None:
        raise ConfigurationError("PENSTOCK_KMS_URL: name the key that wraps content keys")
    return Transit(settings.kms_url, settings.kms_token)


async def wrapped_key(settings: Settings, *, present: bool = False) -> str:
    """Return a new content key, wrapped; with `present`, the first key of the settings, wrapped
    anew. Raises as `open_content_keys` does."""
    service = key_service(settings)
    keys = [each for each in (await open_content_keys(settings)).content_keys if each != NONE]
    if present and not keys:
        raise ConfigurationError(f"{SETTING}: there is no present key")
    key = keys[0] if present else secrets.token_hex(KEY_BYTES)
    word = f"{WRAPPED}{master_id(key)}:{await service.wrap(key)}"
    await _opened(service, word)  # a service that cannot open it must not be relied on
    return word


async def _opened(service: KeyService, word: str) -> str:
    wanted, _, wrapped = word.removeprefix(WRAPPED).partition(":")
    key = await service.unwrap(wrapped)
    if (found := master_id(key)) != wanted:
        raise StartUpError(
            f"the key service has answered with the key {found}, and {SETTING} names {wanted}: "
            "nothing was sealed or opened with it"
        )
    return key
