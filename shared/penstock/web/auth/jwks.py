"""Read an issuer's keys from the issuer's JWKS URL (RFC 7517), and cache the keys.

After a rotation, the keys are read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import httpx
import jwt
import orjson

from penstock.web.problems import invalid_token, unavailable

log = logging.getLogger(__name__)

MAX_BYTES: Final = 1024 * 1024
MAX_STALE_S: Final = 24 * 3600.0
RETRY_S: Final = 1.0
MIN_RSA_BITS: Final = 2048

# Maps each algorithm to the kind of key (key type and curve) that the algorithm needs. Symmetric
# algorithms are missing on purpose. A JWKS document is public, so it must not contain secrets, and
# a public key must never be used as a secret.
NEEDS: Final[dict[str, tuple[str, str | None]]] = {
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}

KeySet = Mapping[tuple[str | None, str], Any]


class JwksFailure(Exception):
    """The error for keys of the issuer that cannot be read. The text says why."""


class Jwks:
    """The keys of one issuer, at a URL or at the one that a function finds.

    Keys older than `cache_s` are read again. If the issuer does not answer, the cached keys are
    used for up to a day. An unknown `kid` causes an additional read, but at most one in `refetch_s`
    seconds. Otherwise a caller that invents `kid`s could flood the issuer with requests.
    """

    def __init__(
        self,
        url: str | Callable[[httpx.AsyncClient], Awaitable[str]],
        algorithms: Sequence[str],
        *,
        cache_s: float = 300.0,
        refetch_s: float = 10.0,
        timeout_s: float = 5.0,
    ) -> None:
        self._url = url
        self._algorithms = tuple(algorithms)
        self._cache_s = cache_s
        self._refetch_s = refetch_s
        self._http = httpx.AsyncClient(timeout=timeout_s, follow_redirects=False)
        self._keys: KeySet = {}
        self._read_at = float("-inf")
        self._retry_at = float("-inf")
        self._look_again_at = float("-inf")
        self._reading: asyncio.Task[bool] | None = None

    async def key(self, kid: str | None, algorithm: str) -> Any:
        """Return the key with this `kid`.

        Without a `kid`, return the key for the algorithm, if there is only one.

        Raises Problem: 401 if the issuer has no such key, 503 if the keys cannot be read now.
        """
        age_s = self._now() - self._read_at
        if age_s > MAX_STALE_S:
            await self._read_again()
        elif age_s > self._cache_s:
            self._begin()
        found = self._find(kid, algorithm)
        if found is None and (self._busy or self._now() >= self._look_again_at):
            self._look_again_at = max(self._look_again_at, self._now() + self._refetch_s)
            if age_s <= MAX_STALE_S:  # older keys were already read again above
                await self._read_again()
            found = self._find(kid, algorithm)
        if found is None:
            raise invalid_token("the token names no key of ours")
        return found

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._http.aclose()

    @property
    def _busy(self) -> bool:
        return self._reading is not None and not self._reading.done()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _find(self, kid: str | None, algorithm: str) -> Any:
        if kid is not None:
            return self._keys.get((kid, algorithm))
        fitting = [key for (_, needed), key in self._keys.items() if needed == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    def _begin(self) -> None:
        if not self._busy and self._now() >= self._retry_at:
            self._reading = asyncio.create_task(self._read(), name="jwks")

    async def _read_again(self) -> None:
        """Wait for the read that all callers share. If one caller is cancelled, the read
        continues."""
        self._begin()
        if not self._busy or self._reading is None or not await asyncio.shield(self._reading):
            raise unavailable("the keys to check the token with are out of reach; try again")

    async def _read(self) -> bool:
        try:
            self._keys = usable_keys(await self._fetch(), self._algorithms)
        except JwksFailure as error:
            at = f" at {self._url}" if isinstance(self._url, str) else ""
            log.warning("the issuer's keys%s cannot be read: %s", at, error)
            self._retry_at = self._now() + RETRY_S
            return False
        self._read_at = self._now()
        return True

    async def _fetch(self) -> bytes:
        url = self._url if isinstance(self._url, str) else await self._url(self._http)
        return await fetched(self._http, url)


async def fetched(http: httpx.AsyncClient, url: str) -> bytes:
    """Return the issuer's document at this URL. Raises JwksFailure."""
    status, body = await answer_of(http, "GET", url)
    if status != httpx.codes.OK:
        raise JwksFailure(f"it answers with status {status}")
    return body


async def answer_of(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    data: Mapping[str, str] | None = None,
    auth: httpx.BasicAuth | None = None,
) -> tuple[int, bytes]:
    """Return the status and the body of an issuer's answer. Raises JwksFailure for no answer, one
    that is too large, and one that takes longer as a whole than `http` waits for a piece of it."""
    body = b""
    try:
        request = http.build_request(method, url, data=data)
        async with asyncio.timeout(http.timeout.read):
            response = await http.send(request, auth=auth, stream=True)
            async with aclosing(response):
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MAX_BYTES:
                        raise JwksFailure(f"it has more than {MAX_BYTES} bytes")
    except TimeoutError as error:
        raise JwksFailure(f"no answer in {http.timeout.read} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise JwksFailure(f"no answer: {error or type(error).__name__}") from error
    return response.status_code, body


def usable_keys(body: bytes, algorithms: Sequence[str]) -> KeySet:
    """Return a dict from `kid` and algorithm to the keys of a JWKS document that fit one of the
    algorithms.

    Raises JwksFailure if the document is no JWKS or has no fitting key. Such a document must be a
    mistake, because an issuer always has a key.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise JwksFailure("it is not JSON") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise JwksFailure("it has no list of keys")
    keys: dict[tuple[str | None, str], Any] = {}
    for jwk in listed:
        for algorithm in algorithms:
            if (key := _key(jwk, algorithm)) is not None:
                keys.setdefault((jwk.get("kid"), algorithm), key)
    if not keys:
        raise JwksFailure(f"it has no key for {', '.join(algorithms)}")
    return keys


def _key(jwk: Any, algorithm: str) -> Any:
    if not isinstance(jwk, dict) or not isinstance(jwk.get("kid"), str | None):
        return None
    kind, curve = NEEDS.get(algorithm, (None, None))
    fits = (
        jwk.get("kty") == kind
        and jwk.get("crv") == curve
        and jwk.get("alg", algorithm) == algorithm
        and jwk.get("use", "sig") == "sig"
        and "d" not in jwk  # a private key in the document is public, so anybody could sign with it
    )
    if not fits:
        return None
    try:
        key = jwt.PyJWK(jwk, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    return None if kind == "RSA" and key.key_size < MIN_RSA_BITS else key
