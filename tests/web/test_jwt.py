"""Bearers: which tokens are accepted, and that all known forgeries are refused."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from typing import Any

import httpx
import jwt
import orjson
import pytest

from support.fakes.guarded_server import Guarded, bearer
from support.fakes.issuer import AUDIENCE, ISSUER, SECRET, JwksServer, Key, token

MakeGuarded = Callable[..., Any]


def segment(document: Any) -> str:
    raw = document if isinstance(document, bytes) else orjson.dumps(document)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(header: Any, claims: Any = None, signature: str = "AAAA") -> str:
    body = claims or {"sub": "alice", "exp": int(time.time()) + 600}
    return f"{segment(header)}.{segment(body)}.{signature}"


def signed(payload: bytes) -> str:
    """Return a token with these very bytes as its payload and a valid signature."""
    return jwt.api_jws.encode(payload, SECRET, "HS256")


def refused(response: httpx.Response, why: str = "") -> None:
    assert response.status_code == 401, response.text
    assert response.headers["www-authenticate"].startswith('Bearer realm="penstock"')
    assert why in response.json()["detail"]


async def test_a_bearer_that_holds_is_its_subject(guarded: Guarded) -> None:
    response = await guarded.as_bearer(token(sub="alice"))
    assert response.status_code == 200
    assert response.json() == {
        "user_id": "alice",
        "scopes": ["decide", "raw", "read", "start"],
        "kind": "bearer",
    }


async def test_without_credentials_the_answer_names_the_scheme_and_no_error(
    guarded: Guarded,
) -> None:
    response = await guarded.get()
    refused(response)
    assert response.headers["www-authenticate"] == 'Bearer realm="penstock"'


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer"])
async def test_the_scheme_is_read_in_any_case(guarded: Guarded, scheme: str) -> None:
    response = await guarded.get(authorization=f"{scheme} {token()}")
    assert response.status_code == 200


@pytest.mark.parametrize("value", ["Basic YTpi", "Bearer", "eyJ", "Token abc"])
async def test_another_scheme_is_refused(guarded: Guarded, value: str) -> None:
    refused(await guarded.get(authorization=value))


async def test_two_authorization_headers_are_refused(guarded: Guarded) -> None:
    headers = [("authorization", f"Bearer {token()}"), ("authorization", f"Bearer {token()}")]
    response = await guarded.http.get("/v1/runs", headers=headers)
    assert response.status_code == 400
    assert 'error="invalid_request"' in response.headers["www-authenticate"]


# exp, iat, nbf ---------------------------------------------------------------------------------


async def test_an_expired_token_is_taken_within_the_leeway_and_no_longer(
    make_guarded: MakeGuarded,
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, leeway_s=30)
    now = int(time.time())
    assert (await guarded.as_bearer(token(exp=now - 10))).status_code == 200
    refused(await guarded.as_bearer(token(exp=now - 40)), "expired")


async def test_without_leeway_an_expired_token_is_refused(make_guarded: MakeGuarded) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, leeway_s=0)
    refused(await guarded.as_bearer(token(exp=int(time.time()) - 1)), "expired")


@pytest.mark.parametrize("claim", ["nbf", "iat"])
async def test_a_token_of_the_future_is_refused(guarded: Guarded, claim: str) -> None:
    claims: dict[str, Any] = {claim: int(time.time()) + 600}
    refused(await guarded.as_bearer(token(**claims)))


@pytest.mark.parametrize(
    "payload",
    [
        b'{"sub": "alice", "exp": 1e999}',
        b'{"sub": "alice", "exp": NaN}',
        b'{"sub": "alice", "exp": "soon"}',
        b'{"sub": "alice", "exp": [1]}',
        b'{"sub": "alice", "exp": null}',
        b'{"sub": "alice", "exp": -1}',
        b'["alice"]',
        b'"alice"',
        b"not JSON",
        b"\xff\xfe",
        b"[" * 5000,
        b"",
    ],
)
async def test_a_payload_that_is_no_claims_is_refused_and_breaks_nothing(
    guarded: Guarded, payload: bytes
) -> None:
    refused(await guarded.as_bearer(signed(payload)))


@pytest.mark.parametrize("sub", [None, "", 42, ["alice"], "anonymous", "a\nb", "a\x00b", "x" * 257])
async def test_a_subject_that_is_no_users_name_is_refused(guarded: Guarded, sub: Any) -> None:
    document = {"exp": int(time.time()) + 600} | ({} if sub is None else {"sub": sub})
    refused(await guarded.as_bearer(signed(orjson.dumps(document))))


async def test_half_a_character_is_no_users_name(guarded: Guarded) -> None:
    expires_at = int(time.time()) + 600
    for sub in (rb"\ud800", rb"alice\udfff", rb"\udc00\ud800"):
        document = b'{"sub": "%b", "exp": %d}' % (sub, expires_at)
        refused(await guarded.as_bearer(signed(document)), "no user of ours")
        refused(await guarded.as_bearer(signed(document), "/v1/csrf"), "no user of ours")


async def test_a_token_without_expiry_is_refused(guarded: Guarded) -> None:
    refused(await guarded.as_bearer(token(exp=None)), "lacks a claim")


# issuer, audience ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"iss": ISSUER, "aud": AUDIENCE}, 200),
        ({"iss": ISSUER, "aud": ["other", AUDIENCE]}, 200),
        ({"iss": ISSUER, "aud": "other"}, 401),
        ({"iss": ISSUER, "aud": AUDIENCE + "x"}, 401),
        ({"iss": ISSUER}, 401),
        ({"iss": ISSUER + "/", "aud": AUDIENCE}, 401),
        ({"iss": [ISSUER], "aud": AUDIENCE}, 401),
        ({"aud": AUDIENCE}, 401),
    ],
)
async def test_issuer_and_audience_must_be_ours(
    make_guarded: MakeGuarded, claims: dict[str, Any], status: int
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, issuer=ISSUER, audience=AUDIENCE)
    payload = {"sub": "alice", "exp": int(time.time()) + 600, **claims}
    response = await guarded.as_bearer(signed(orjson.dumps(payload)))
    assert response.status_code == status


async def test_a_token_for_some_audience_is_refused_where_none_is_configured(
    guarded: Guarded,
) -> None:
    refused(await guarded.as_bearer(token(aud="somebody-else")), "audience")


# scopes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({}, ["decide", "raw", "read", "start"]),
        ({"scope": "read start"}, ["read", "start"]),
        ({"scope": ["read", "act-as"]}, ["act-as", "read"]),
        ({"scp": "administer"}, ["administer"]),
        ({"scopes": ["read"], "scope": "openid profile"}, ["read"]),
        ({"scope": "openid profile"}, []),
        ({"scope": ""}, []),
    ],
)
async def test_scopes_are_what_the_token_says(
    guarded: Guarded, claims: dict[str, Any], scopes: list[str]
) -> None:
    response = await guarded.as_bearer(token(**claims))
    assert response.json()["scopes"] == scopes


@pytest.mark.parametrize("scope", [7, {"read": True}, ["read", 7], True])
async def test_a_scope_claim_of_another_type_is_refused(guarded: Guarded, scope: Any) -> None:
    refused(await guarded.as_bearer(token(scope=scope)))


# the algorithm ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 1, ["HS256"], {}])
async def test_a_token_without_a_signature_is_refused(guarded: Guarded, algorithm: Any) -> None:
    header = {"typ": "JWT", "alg": algorithm}
    refused(await guarded.as_bearer(forged(header, signature="")))
    refused(await guarded.as_bearer(forged(header)))


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
async def test_the_algorithm_is_pinned_though_the_secret_is_right(
    guarded: Guarded, algorithm: str
) -> None:
    long = token(SECRET * 3, algorithm)
    refused(await guarded.as_bearer(long), "algorithm")


async def test_another_secret_is_refused(guarded: Guarded) -> None:
    refused(await guarded.as_bearer(token(SECRET + "x")), "signature")


async def test_a_changed_payload_is_refused(guarded: Guarded) -> None:
    header, _, signature = token(sub="alice").split(".")
    other = token(sub="mallory").split(".")[1]
    refused(await guarded.as_bearer(f"{header}.{other}.{signature}"), "signature")


async def test_the_public_key_is_no_hmac_secret(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key
) -> None:
    """In this well-known attack, a token is signed with HS256 and the public key as the secret."""
    issuer.keys = [rsa_key]
    guarded = await make_guarded(jwks_url=issuer.url)
    header = {"typ": "JWT", "alg": "HS256", "kid": rsa_key.kid}
    for secret in (rsa_key.pem, rsa_key.pem.strip(), orjson.dumps(rsa_key.jwk)):
        signing = forged(header).rpartition(".")[0]
        hmac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
        signature = base64.urlsafe_b64encode(hmac.sign(signing.encode(), secret)).rstrip(b"=")
        refused(await guarded.as_bearer(f"{signing}.{signature.decode()}"), "algorithm")


async def test_an_rsa_token_is_refused_where_a_secret_is_configured(
    guarded: Guarded, rsa_key: Key
) -> None:
    refused(await guarded.as_bearer(rsa_key.token()), "algorithm")


# the header ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kid",
    [
        "../../dev/null",
        "' OR 1=1 --",
        "https://evil.example/jwks",
        "/etc/passwd",
        "x" * 5000,
        "",
        "\x00",
        7,
        ["rsa-1"],
        {"$ne": ""},
    ],
)
async def test_an_injected_kid_finds_no_key(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, kid: Any
) -> None:
    issuer.keys = [rsa_key]
    guarded = await make_guarded(jwks_url=issuer.url)
    refused(await guarded.as_bearer(forged({"alg": "RS256", "kid": kid})))


async def test_a_key_inside_the_token_is_not_looked_at(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, other_key: Key
) -> None:
    issuer.keys = [rsa_key]
    evil = JwksServer()
    evil.keys = [other_key]
    await evil.start()
    guarded = await make_guarded(jwks_url=issuer.url)
    claims = {"sub": "alice", "exp": int(time.time()) + 600}
    for extra in ({"jwk": other_key.jwk}, {"jku": evil.url}, {"x5u": evil.url}):
        for kid in (rsa_key.kid, other_key.kid):
            header = {"kid": kid, **extra}
            refused(
                await guarded.as_bearer(
                    jwt.encode(claims, other_key.private, "RS256", headers=header)
                )
            )
    assert evil.reads == 0
    await evil.stop()


@pytest.mark.parametrize("crit", [["b64"], ["exp"], [], "exp", [1]])
async def test_a_critical_extension_is_refused(guarded: Guarded, crit: Any) -> None:
    refused(await guarded.as_bearer(forged({"alg": "HS256", "crit": crit, "b64": False})))


async def test_a_header_that_is_nested_deeply_is_refused(guarded: Guarded) -> None:
    refused(await guarded.as_bearer(forged(b"[" * 5000)))


# malformed tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["x", "a.b", "a.b.c", "a.b.c.d", "..", "eyJ.eyJ.", "a b.c.d", "a.b.c,d.e.f", "ä.b.c"]
)
async def test_what_is_no_token_is_refused(guarded: Guarded, text: str) -> None:
    response = await guarded.http.get(
        "/v1/runs", headers=[(b"authorization", b"Bearer " + text.encode())]
    )
    refused(response)


async def test_a_huge_token_is_refused_before_it_is_read(guarded: Guarded) -> None:
    refused(await guarded.as_bearer(token(padding="x" * 20_000)), "no JSON Web Token")


async def test_a_head_without_end_is_cut_off(guarded: Guarded) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.server.port)
    writer.write(b"GET /v1/runs HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 70_000)
    answer = await reader.read(100)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_large_body_is_not_counted_as_head(guarded: Guarded) -> None:
    for _ in range(2):  # the second request uses the same connection
        response = await guarded.http.post(
            "/v1/runs", headers=bearer(token()), content=b"x" * 1_000_000
        )
        assert response.status_code == 200


async def test_a_token_in_the_url_is_refused_everywhere_even_one_that_holds(
    guarded: Guarded,
) -> None:
    good = token()
    for path in ("/v1/runs", "/v1/runs/r1/events", "/run_sse"):
        for name in ("token", "access_token", "%74oken"):
            refused(await guarded.get(f"{path}?{name}={good}"), "URL")
    # A client that also sends the header is refused too, because the token in the URL is in logs by
    # now.
    refused(await guarded.as_bearer(good, f"/v1/runs?token={good}"), "URL")


async def test_a_query_of_thousands_of_parameters_is_refused(guarded: Guarded) -> None:
    response = await guarded.as_bearer(token(), "/v1/runs?" + "&".join(["a=1"] * 2000))
    assert response.status_code == 400
