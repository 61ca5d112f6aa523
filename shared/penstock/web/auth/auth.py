"""Authenticate requests. The result is the Identity of the request's caller, or a refusal."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from penstock.web.auth import csrf, service_tokens
from penstock.web.auth.config import AuthConfig
from penstock.web.auth.cookies import credential_cookie, csrf_cookie
from penstock.web.auth.credentials import (
    Credential,
    cookie_of,
    find,
    header_of,
    headers_of,
)
from penstock.web.auth.identity import ANONYMOUS, NOBODY, Identity
from penstock.web.auth.limits import OpenCounts, Requests
from penstock.web.auth.origins import is_allowed_origin, is_local
from penstock.web.auth.service_tokens import ServiceTokens
from penstock.web.auth.stream_tokens import StreamTokens
from penstock.web.problems import Problem, invalid_token, missing_credentials

if TYPE_CHECKING:  # at run time only where keys are configured: with their packages, 13 MiB
    from penstock.web.auth.jwt import Verifier
    from penstock.web.auth.oidc import SignIn

log = logging.getLogger(__name__)

CHECK_AGAIN_S: Final = 15.0


class Auth:
    """Authenticates requests. If no key is configured, every caller is `anonymous`."""

    def __init__(
        self,
        config: AuthConfig,
        tokens: StreamTokens | None = None,
        services: ServiceTokens | None = None,
        look_again_s: float = CHECK_AGAIN_S,
    ) -> None:
        """`look_again_s` is the longest time until an open stream ends after a revocation."""
        self._warning_s = config.token_warning_s
        self.config = config
        self.tokens = tokens
        self.services = services
        self.csrf = csrf.Csrf.of(config)
        self.connections = OpenCounts(
            "connections",
            config.max_connections_per_user,
            "connections open at a time",
            config.tenant_limits,
        )
        self.streams = OpenCounts(
            "streams", config.max_streams_per_user, "streams open at a time", config.tenant_limits
        )
        self.requests = Requests(
            config.max_requests_per_s,
            config.max_requests_burst,
            tenant_limits=config.tenant_limits,
        )
        self._look_again_s = look_again_s
        self._verifier: Verifier | None = None
        self.sign_in: SignIn | None = None
        if config.is_configured:
            from penstock.web.auth.keys import verifier_and_sign_in  # noqa: PLC0415

            self._verifier, self.sign_in = verifier_and_sign_in(config, self.csrf)
        self._cookie = credential_cookie(config)
        self._csrf_cookie = csrf_cookie(config)
        if config.allow_unauthenticated_sse:
            log.warning(
                "ALLOW_UNAUTHENTICATED_SSE IS ON: NOBODY IS ASKED WHO THEY ARE. Every caller is "
                "`anonymous` and may act for every user. For development only"
            )

    @property
    def requires_credentials(self) -> bool:
        return self.config.requires_credentials

    async def admit(
        self, scope: Scope, *, public: bool = False, stream_token: bool = False
    ) -> Identity:
        """Return the caller of the request.

        With `public`, credentials are ignored. With `stream_token`, a stream token in the URL is
        accepted.

        Raises Problem 400 for contradicting credentials, and 401 for missing or invalid
        credentials. Raises Problem 403 if the request comes from a page whose origin is not
        allowed, or lacks a required CSRF token. Raises Problem 503 if credentials cannot be checked
        now.
        """
        identity = await self._identify(scope, public=public, stream_token=stream_token)
        is_hook = public and not headers_of(scope, b"origin")
        if identity.kind in ("cookie", "anonymous") and not is_hook:
            # A page of any origin can make a browser send the cookie. Any page can also call a
            # server that does not authenticate. So the origin is checked for requests with a cookie
            # and for anonymous requests. A request with a bearer token needs no check, because a
            # foreign page does not have the token. Neither does a public operation that another
            # server calls, as a webhook, whose caller sends a secret of its own.
            self._check_page(scope, identity)
        return identity

    async def wait_until_credential_ends(
        self, identity: Identity, warn: Callable[[float], object] | None = None
    ) -> None:
        """Wait until the identity has expired or its token was revoked.

        A stream that the caller has opened ends when this method returns. For `anonymous`, this
        method never returns. If a stream token is extended, the new expiry counts.

        When a stream token has no more than `token_warning_s` seconds left, `warn` is called once
        with the number of seconds left. If the token is extended after the warning, `warn` is
        called again before the new expiry.
        """
        warned_of = None
        while (left_s := self._left_s(identity)) > 0:
            if identity.grant is not None and warn is not None:
                if left_s <= self._warning_s and warned_of != identity.expires_at:
                    warned_of = identity.expires_at
                    warn(left_s)
                if left_s > self._warning_s:
                    left_s -= self._warning_s  # Wake up when the warning is due.
            # No sleep is longer than `_look_again_s`, because the wall clock may be changed during
            # the sleep. A longer sleep would then end long after the expiry.
            await asyncio.sleep(min(left_s, self._look_again_s))
            renewed = await self._renewed(identity)
            if renewed is None:
                return
            identity = renewed

    async def close(self) -> None:
        for each in (self.sign_in, self._verifier):
            if each is not None:
                await each.close()

    async def _identify(self, scope: Scope, *, public: bool, stream_token: bool) -> Identity:
        if not self.requires_credentials:
            return ANONYMOUS
        if public:
            return NOBODY
        credential = find(scope, self._cookie, stream_token=stream_token)
        if credential is None:
            raise missing_credentials()
        if credential.kind == "stream_token":
            return await self._of_stream_token(credential)
        if credential.kind == "bearer" and credential.value.startswith(service_tokens.PREFIX):
            return await self._of_service_token(credential)
        return await self._of_jwt(credential)

    async def _of_jwt(self, credential: Credential) -> Identity:
        assert self._verifier is not None
        claims = await self._verifier.verify(credential.value)
        return Identity(
            claims.user_id,
            claims.scopes,
            "bearer" if credential.kind == "bearer" else "cookie",
            claims.expires_at,
            session=hashlib.sha256(credential.value.encode()).hexdigest(),
            roles=claims.roles,
            tenant=claims.tenant,
        )

    async def _of_stream_token(self, credential: Credential) -> Identity:
        if self.tokens is None:
            raise invalid_token("stream tokens are not served here")
        return await self.tokens.identify(credential.value)

    async def _of_service_token(self, credential: Credential) -> Identity:
        if self.services is None:
            raise invalid_token("service tokens are not served here")
        return await self.services.identify(credential.value)

    def _check_page(self, scope: Scope, identity: Identity) -> None:
        safe = scope["type"] == "http" and scope["method"] in csrf.SAFE_METHODS
        if safe:
            return
        if not is_allowed_origin(scope, self.config.cors_origins):
            raise Problem(
                403, "the page that sent this is neither ours nor among PENSTOCK_AUTH_CORS_ORIGINS"
            )
        if scope["type"] == "websocket" or identity.kind != "cookie":
            return
        if is_local(scope) and not headers_of(scope, csrf.HEADER):
            return
        header = header_of(scope, csrf.HEADER)
        if not self.csrf.holds(identity.session, header, cookie_of(scope, self._csrf_cookie)):
            raise Problem(403, "send the token of GET /v1/csrf as X-CSRF-Token, with its cookie")

    def _left_s(self, identity: Identity) -> float:
        if identity.expires_at is None:
            return float("inf")
        # Penstock's own tokens expire by the clock of the NATS server. JWTs expire by the clock of
        # this machine.
        ours = self._issuer_of(identity)
        return identity.expires_at - (ours.now() if ours is not None else time.time())

    def _issuer_of(self, identity: Identity) -> StreamTokens | ServiceTokens | None:
        if identity.service is not None:
            return self.services
        return self.tokens if identity.grant is not None else None

    async def _renewed(self, identity: Identity) -> Identity | None:
        issuer = self._issuer_of(identity)
        if issuer is None or identity.token_id is None:
            return identity
        try:
            expires_at = await issuer.expiry_of(identity.token_id)
        except Problem as problem:
            log.warning("a stream goes on, unchecked for now: %s", problem.detail)
            return identity
        return None if expires_at is None else replace(identity, expires_at=expires_at)
