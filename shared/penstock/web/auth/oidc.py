"""Signs people in at an OpenID Connect provider: authorization code with PKCE.

The provider's ID token becomes the cookie of `POST /v1/login` (decision 0344). So a person who has
signed in is a caller with a JWT, like any other, to every service. What one sign-in must remember
until its end is in a sealed cookie of the browser that has begun it.

Sources: OpenID Connect Core 1.0 and Discovery 1.0, RFC 7636 (PKCE), RFC 9207 and RFC 9700.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import httpx
import jwt
import orjson
from pydantic import BaseModel, Field, ValidationError

from penstock.web.auth import cookies
from penstock.web.auth.config import AuthConfig
from penstock.web.auth.csrf import Csrf
from penstock.web.auth.jwks import RETRY_S, JwksFailure, answer_of, fetched
from penstock.web.auth.jwt import Verifier
from penstock.web.auth.sign_in import CALLBACK, FLOW_S, Reason, SignInRefused
from penstock.web.problems import Problem

log = logging.getLogger(__name__)

CACHE_S: Final = 3600.0
Url = Annotated[str, Field(pattern=r"^https?://[!-~]+$")]
# A path of this server: no second slash or backslash, with which it would name another host.
_OWN_PLACE: Final = re.compile(r"/(?![/\\])[!\"$-\[\]-~]{0,1000}", re.ASCII)


class Provider(BaseModel):
    """What a provider's configuration says about it. Browsers are sent to some of the URLs."""

    issuer: str
    authorization_endpoint: Url
    token_endpoint: Url
    jwks_uri: Url
    end_session_endpoint: Url | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None

    @property
    def takes_basic(self) -> bool:
        """Whether the client's secret goes into the header Authorization."""
        methods = self.token_endpoint_auth_methods_supported
        return methods is None or "client_secret_basic" in methods


class Discovery:
    """Reads the configuration of a provider, and remembers it for an hour.

    Anybody may begin a sign-in. So all callers share one read, and after one that has failed, none
    is made for `RETRY_S`: otherwise strangers could flood a provider that is already unwell.
    """

    def __init__(self, issuer: str) -> None:
        self.url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        self._issuer = issuer
        self._read: Provider | JwksFailure | None = None
        self._read_again_at = float("-inf")
        self._reading = asyncio.Lock()

    async def provider(self, http: httpx.AsyncClient) -> Provider:
        """Return the configuration. Raises JwksFailure if it cannot be read."""
        async with self._reading:
            if time.monotonic() >= self._read_again_at:
                self._read = await self._fetch(http)
                is_usable = isinstance(self._read, Provider)
                self._read_again_at = time.monotonic() + (CACHE_S if is_usable else RETRY_S)
        if not isinstance(self._read, Provider):
            raise JwksFailure(str(self._read))
        return self._read

    async def jwks_url(self, http: httpx.AsyncClient) -> str:
        return (await self.provider(http)).jwks_uri

    async def _fetch(self, http: httpx.AsyncClient) -> Provider | JwksFailure:
        try:
            return provider_of(await fetched(http, self.url), self._issuer)
        except JwksFailure as failure:
            return failure


def provider_of(body: bytes, issuer: str) -> Provider:
    """Parse the configuration of a provider. Raises JwksFailure for a configuration that is of
    another issuer, or lacks what a sign-in needs."""
    try:
        provider = Provider.model_validate_json(body)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise JwksFailure(
            f"its configuration is not that of a provider: {'; '.join(wrong)}"
        ) from error
    if provider.issuer != issuer:
        # Otherwise one provider could speak for another (OpenID Connect Discovery 1.0, 4.3).
        raise JwksFailure(f"its configuration is that of the issuer {provider.issuer!r}")
    if "S256" not in (provider.code_challenge_methods_supported or ["S256"]):
        raise JwksFailure("it does not support PKCE with S256")
    return provider


class Flow(NamedTuple):
    """What the browser keeps while its person signs in. `expires_at` is in Unix seconds."""

    state: str
    nonce: str
    verifier: str
    place: str
    expires_at: float


class SignedIn(NamedTuple):
    """The ID token of a person, and where the browser goes on."""

    token: str
    expires_at: float
    place: str


class SignIn:
    """Carries out sign-ins."""

    def __init__(
        self, config: AuthConfig, discovery: Discovery, verifier: Verifier, csrf: Csrf
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._verifier = verifier
        self._csrf = csrf
        self._http = httpx.AsyncClient(timeout=config.jwks_timeout_s, follow_redirects=False)

    async def begin(self, place: str) -> tuple[str, str]:
        """Return the provider's URL for a new sign-in, and the sealed cookie that it needs."""
        config, place = self._config, own_place(place)
        provider = await self._provider(place)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": config.oidc_client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(config.oidc_scopes or ("openid", "profile")),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        flow = Flow(state, nonce, verifier, place, time.time() + FLOW_S)
        url = provider.authorization_endpoint
        url += f"{'&' if '?' in url else '?'}{urlencode(query)}"
        return url, self._csrf.seal(orjson.dumps(list(flow)))

    async def finish(self, sealed: str | None, answer: Mapping[str, str]) -> SignedIn:
        """Return the ID token for the provider's answer. Raises SignInRefused."""
        flow = self._flow(sealed)
        state = answer.get("state", "")
        if flow is None or not hmac.compare_digest(flow.state.encode(), state.encode()):
            # Another site may have made the browser send this answer, with a code of its own user.
            raise SignInRefused("not_begun", "/", "the answer is to no sign-in of this browser")
        place, issuer = flow.place, self._config.oidc_issuer
        if answer.get("iss", issuer) != issuer:
            raise SignInRefused("not_accepted", place, "the answer is of another issuer")
        if (error := answer.get("error")) is not None:
            reason: Reason = "denied" if error == "access_denied" else "not_accepted"
            raise SignInRefused(reason, place, f"the provider says {error[:100]!r}")
        token = await self._token(answer.get("code", ""), flow)
        try:
            claims = await self._verifier.verify(token)
        except Problem as problem:
            unread = problem.status >= httpx.codes.INTERNAL_SERVER_ERROR
            reason = "unavailable" if unread else "not_accepted"
            raise SignInRefused(reason, place, f"the ID token: {problem.detail}") from problem
        self._check_binding(token, flow)
        if not cookies.fits_in_cookie(self._config, token):
            raise SignInRefused("too_large", place, "the ID token is too large for a cookie")
        return SignedIn(token, claims.expires_at, place)

    async def end_session_url(self) -> str | None:
        """Return where a person signs out at the provider; None if it has no such place."""
        try:
            end = (await self._provider("/")).end_session_endpoint
        except SignInRefused:
            return None
        if end is None:
            return None
        query = {
            "client_id": self._config.oidc_client_id,
            "post_logout_redirect_uri": f"{self._public_url}/",
        }
        return f"{end}{'&' if '?' in end else '?'}{urlencode(query)}"

    async def close(self) -> None:
        await self._http.aclose()

    @property
    def _public_url(self) -> str:
        return (self._config.public_url or "").rstrip("/")

    @property
    def _redirect_uri(self) -> str:
        return f"{self._public_url}{CALLBACK}"

    async def _provider(self, place: str) -> Provider:
        try:
            return await self._discovery.provider(self._http)
        except JwksFailure as error:
            text = f"the provider's configuration cannot be read: {error}"
            raise SignInRefused("unavailable", place, text) from error

    def _flow(self, sealed: str | None) -> Flow | None:
        opened = self._csrf.unseal(sealed) if sealed else None
        flow = Flow(*orjson.loads(opened)) if opened is not None else None
        return flow if flow is not None and time.time() < flow.expires_at else None

    async def _token(self, code: str, flow: Flow) -> str:
        """Exchange the code for an ID token. A provider takes each code once."""
        config, provider = self._config, await self._provider(flow.place)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": flow.verifier,
        }
        client, secret = config.oidc_client_id or "", config.oidc_client_secret
        basic: httpx.BasicAuth | None = None
        if secret is not None and provider.takes_basic:
            # Both are encoded as in forms first (RFC 6749 section 2.3.1).
            basic = httpx.BasicAuth(quote(client, safe=""), quote(secret, safe=""))
        else:
            form |= {"client_id": client} | ({"client_secret": secret} if secret else {})
        try:
            url = provider.token_endpoint
            status, answer = await answer_of(self._http, "POST", url, form, basic)
        except JwksFailure as error:
            raise SignInRefused("unavailable", flow.place, f"no ID token: {error}") from error
        body: Any = None
        try:
            body = orjson.loads(answer)
            token = body["id_token"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            said = body.get("error") if isinstance(body, dict) else None
            text = f"no ID token: status {status}, {str(said)[:100]!r}"
            reason: Reason = (
                "unavailable" if httpx.codes.is_server_error(status) else "not_accepted"
            )
            raise SignInRefused(reason, flow.place, text) from error
        if not httpx.codes.is_success(status) or not isinstance(token, str):
            raise SignInRefused("not_accepted", flow.place, "the answer has no ID token")
        return token

    def _check_binding(self, token: str, flow: Flow) -> None:
        """Check that the ID token, which is valid, is for this sign-in and for this client."""
        claims = jwt.decode(token, options={"verify_signature": False})
        client, audience = self._config.oidc_client_id, claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("nonce") != flow.nonce:
            raise SignInRefused("not_accepted", flow.place, "the ID token is of another sign-in")
        if client not in audiences or claims.get("azp", client) != client:
            raise SignInRefused("not_accepted", flow.place, "the ID token is of another client")


def own_place(text: str) -> str:
    """Return the path and query if they are of this server, else `/`: otherwise a link to a sign-in
    could lead to a page of strangers."""
    return text if _OWN_PLACE.fullmatch(text) else "/"
