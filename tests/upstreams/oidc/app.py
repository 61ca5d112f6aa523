"""An OpenID Connect provider for tests: Authlib's authorization server with PKCE and ID tokens.

It knows the users of USERS, without passwords, and remembers in a cookie who has signed in. What is
posted as `claims` (JSON) is put into the ID token as it is, so that tests can have wrong ones.
"""

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

from authlib.oauth2.rfc6749 import AuthorizationServer, grants
from authlib.oauth2.rfc6749.errors import OAuth2Error
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload, OAuth2Request
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core.grants import OpenIDCode
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "penstock", "a-secret-of-the-client/+%"
USERS: dict[str, dict[str, Any]] = {
    "alice": {"name": "Alice", "roles": ["lead"], "org": "acme"},
    "bob": {"name": "Bob"},
    "brief": {"name": "Brief", "lifetime_s": 5},
    "dora": {"name": "Dora", "scopes": ["read", "decide"]},
    "root": {"name": "Root", "scopes": ["start", "read", "decide", "automate", "administer"]},
}
KEY = RSAKey.generate_key(2048, {"kid": "provider-1", "use": "sig", "alg": "RS256"})


@dataclass
class User:
    id: str
    claims: dict[str, Any] = field(default_factory=dict)


class Client:
    """The one client. Its server has any port of this machine."""

    def get_client_id(self) -> str:
        return CLIENT

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, uri: str) -> bool:
        return bool(re.fullmatch(r"http://127\.0\.0\.1:\d+/v1/oidc/callback", uri))

    def check_client_secret(self, secret: str) -> bool:
        return secret == SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in ("client_secret_basic", "client_secret_post")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass
class Code:
    code: str
    user: User
    redirect_uri: str
    scope: str
    nonce: str | None
    code_challenge: str | None
    code_challenge_method: str | None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str | None:
        return self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


CODES: dict[str, Code] = {}
NONCES: set[str] = set()


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]  # noqa: RUF012

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        data = request.payload.data
        asked = [data.get(name) for name in ("nonce", "code_challenge", "code_challenge_method")]
        scope = data.get("scope")
        NONCES.add(data["nonce"])
        CODES[code] = Code(code, request.user, data["redirect_uri"], scope, *asked)

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        return CODES.get(code)

    def delete_authorization_code(self, code: Code) -> None:
        CODES.pop(code.code, None)

    def authenticate_user(self, code: Code) -> User:
        return code.user


class IdToken(OpenIDCode):
    def exists_nonce(self, nonce: str, request: OAuth2Request) -> bool:
        return nonce in NONCES

    def resolve_client_private_key(self, client: Client) -> KeySet:
        return KeySet([KEY])

    def get_encode_header(self, client: Client) -> dict[str, str]:
        return {"alg": "RS256", "kid": "provider-1"}

    def get_client_claims(self, client: Client) -> dict[str, Any]:
        return {"iss": Provider.issuer, "aud": [CLIENT]}

    def generate_user_info(self, user: User, scope: str) -> dict[str, Any]:
        claims = {"sub": user.id, **user.claims}
        if lifetime_s := claims.pop("lifetime_s", None):
            claims["exp"] = int(time.time()) + lifetime_s
        return claims


class Provider(AuthorizationServer):
    issuer = ""

    def query_client(self, client_id: str) -> Client | None:
        return Client() if client_id == CLIENT else None

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        """Keep no access token, because there is nothing to open with it."""

    def send_signal(self, name: str, *args: Any, **more: Any) -> None: ...

    def create_oauth2_request(self, request: OAuth2Request) -> OAuth2Request:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        if isinstance(body, dict):
            return JSONResponse(body, status, dict(headers))
        return Response(body, status, dict(headers))


class Asked(OAuth2Request):
    """A request of Starlette as Authlib wants it."""

    def __init__(self, request: Request, form: dict[str, str]) -> None:
        super().__init__(request.method, str(request.url), headers=request.headers)
        self._form = form
        self._args = dict(request.query_params)
        self.payload = BasicOAuth2Payload({**self._args, **form})

    @property
    def form(self) -> dict[str, str]:
        return self._form

    @property
    def args(self) -> dict[str, str]:
        return self._args


PROVIDER = Provider(["openid", "profile"])
PROVIDER.register_grant(CodeGrant, [CodeChallenge(required=True), IdToken(require_nonce=True)])
PROVIDER.register_token_generator(
    "default",
    lambda scope, **_: {"access_token": "opaque", "token_type": "Bearer", "scope": scope},
)


async def asked_of(request: Request) -> Asked:
    Provider.issuer = str(request.base_url).rstrip("/")
    return Asked(request, {name: str(value) for name, value in (await request.form()).items()})


async def configuration(request: Request) -> Response:
    await asked_of(request)
    of = Provider.issuer
    return JSONResponse(
        {
            "issuer": of,
            "authorization_endpoint": f"{of}/authorize",
            "token_endpoint": f"{of}/token",
            "jwks_uri": f"{of}/keys",
            "end_session_endpoint": f"{of}/end",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        }
    )


async def keys(request: Request) -> Response:
    return JSONResponse(KeySet([KEY]).as_dict(private=False))


async def authorize(request: Request) -> Response:
    asked = await asked_of(request)
    name = asked.form.get("user") or request.cookies.get("user")
    if name is None:
        buttons = "".join(f'<button name="user" value="{each}">{each}</button>' for each in USERS)
        refuse = '<button name="user" value="nobody">refuse</button>'
        return HTMLResponse(f"<!doctype html><h1>Who?</h1><form method=post>{buttons}{refuse}")
    claims = {**USERS.get(name, {}), **json.loads(asked.form.get("claims", "{}"))}
    user = User(name, claims) if name in USERS else None
    try:
        grant = PROVIDER.get_consent_grant(asked, end_user=user)
    except OAuth2Error as error:
        return PROVIDER.handle_error_response(asked, error)
    response: Response = PROVIDER.create_authorization_response(asked, user, grant)
    if user is not None:
        response.set_cookie("user", name, httponly=True)
    return response


async def token(request: Request) -> Response:
    response: Response = PROVIDER.create_token_response(await asked_of(request))
    return response


async def end(request: Request) -> Response:
    response = RedirectResponse(request.query_params["post_logout_redirect_uri"], 303)
    response.delete_cookie("user")
    return response


app = Starlette(
    routes=[
        Route("/.well-known/openid-configuration", configuration),
        Route("/keys", keys),
        Route("/authorize", authorize, methods=["GET", "POST"]),
        Route("/token", token, methods=["POST"]),
        Route("/end", end),
    ]
)
