"""The issuer's keys are cached and rotated, and an issuer may be unreachable for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import RSAAlgorithm

from penstock.web.auth.jwks import JwksFailure, usable_keys
from support.drive.waiting import eventually
from support.fakes.guarded_server import Guarded
from support.fakes.issuer import JwksServer, Key, claims_of

MakeGuarded = Callable[..., Any]


async def status(guarded: Guarded, key: Key) -> int:
    return (await guarded.as_bearer(key.token())).status_code


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_is_taken_whose_key_the_issuer_publishes(
    make_guarded: MakeGuarded, issuer: JwksServer, algorithm: str
) -> None:
    key, stranger = Key("k1", algorithm), Key("k1", algorithm)
    issuer.keys = [key]
    guarded = await make_guarded(jwks_url=issuer.url, algorithms=algorithm)
    assert await status(guarded, key) == 200
    assert await status(guarded, stranger) == 401


async def test_an_algorithm_that_is_not_pinned_is_refused_though_its_key_is_published(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key
) -> None:
    issuer.keys = [rsa_key, Key("ec", "ES256")]
    guarded = await make_guarded(jwks_url=issuer.url, algorithms="ES256")
    assert await status(guarded, issuer.keys[1]) == 200
    assert await status(guarded, rsa_key) == 401


async def test_the_keys_are_read_once(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key
) -> None:
    issuer.keys = [rsa_key]
    guarded = await make_guarded(jwks_url=issuer.url)
    assert await asyncio.gather(*(status(guarded, rsa_key) for _ in range(10))) == [200] * 10
    assert issuer.reads == 1


async def test_a_rotated_key_is_taken_with_its_first_token(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, other_key: Key
) -> None:
    issuer.keys = [rsa_key]
    guarded = await make_guarded(jwks_url=issuer.url)
    assert await status(guarded, rsa_key) == 200
    issuer.keys = [rsa_key, other_key]
    assert await asyncio.gather(*(status(guarded, other_key) for _ in range(5))) == [200] * 5
    assert issuer.reads == 2


async def test_invented_key_ids_cause_one_reading_and_no_more(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, other_key: Key
) -> None:
    issuer.keys = [rsa_key]
    guarded = await make_guarded(jwks_url=issuer.url, jwks_refetch_s=3600)
    assert await status(guarded, rsa_key) == 200
    for number in range(10):
        other_key.kid = f"invented-{number}"
        assert await status(guarded, other_key) == 401
    assert issuer.reads == 2
    assert await status(guarded, rsa_key) == 200


async def test_a_key_that_the_issuer_took_back_is_refused_after_the_cache_time(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, other_key: Key
) -> None:
    issuer.keys = [rsa_key]
    guarded = await make_guarded(jwks_url=issuer.url, jwks_cache_s=0.01)
    assert await status(guarded, rsa_key) == 200
    issuer.keys = [other_key]

    async def refused() -> bool:
        return await status(guarded, rsa_key) == 401

    await eventually(refused)


@pytest.mark.parametrize(
    "trouble",
    [
        {"status": 500},
        {"status": 302},
        {"body": b"not JSON"},
        {"body": b"[]"},
        {"body": b'{"keys": {}}'},
        {"body": b'{"keys": []}'},
        {"body": b'{"keys": [1, null, {"kty": "RSA"}, {"kty": "RSA", "kid": 7}]}'},
        {"body": b" " * (1024 * 1024 + 1)},
    ],
)
async def test_without_any_keys_the_answer_is_503_and_says_to_try_again(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, trouble: dict[str, Any]
) -> None:
    issuer.keys = [rsa_key]
    for name, value in trouble.items():
        setattr(issuer, name, value)
    guarded = await make_guarded(jwks_url=issuer.url)
    response = await guarded.as_bearer(rsa_key.token())
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert issuer.url not in response.text


async def test_keys_are_not_fetched_from_where_a_redirect_points(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key
) -> None:
    elsewhere = JwksServer()
    elsewhere.keys = [rsa_key]
    await elsewhere.start()
    issuer.status, issuer.location = 302, elsewhere.url
    guarded = await make_guarded(jwks_url=issuer.url)
    assert await status(guarded, rsa_key) == 503
    assert elsewhere.reads == 0
    await elsewhere.stop()


async def test_an_issuer_that_is_away_is_not_asked_with_every_request(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key
) -> None:
    issuer.status = 500
    guarded = await make_guarded(jwks_url=issuer.url)
    assert [await status(guarded, rsa_key) for _ in range(5)] == [503] * 5
    assert issuer.reads == 1


async def test_an_issuer_that_stalls_holds_nobody_beyond_the_timeout(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key
) -> None:
    issuer.answering.clear()
    guarded = await make_guarded(jwks_url=issuer.url, jwks_timeout_s=1)
    async with asyncio.timeout(30):
        assert await asyncio.gather(*(status(guarded, rsa_key) for _ in range(3))) == [503] * 3
    assert issuer.reads == 1


@pytest.mark.parametrize("trouble", ["error", "stall"])
async def test_keys_that_are_old_still_serve_while_the_issuer_is_away(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, trouble: str
) -> None:
    issuer.keys = [rsa_key]
    guarded = await make_guarded(jwks_url=issuer.url, jwks_cache_s=0.001, jwks_timeout_s=20)
    assert await status(guarded, rsa_key) == 200
    if trouble == "error":
        issuer.status = 500
    else:
        issuer.answering.clear()
    async with asyncio.timeout(10):
        assert [await status(guarded, rsa_key) for _ in range(3)] == [200] * 3

    async def read_again() -> bool:
        return issuer.reads > 1

    await eventually(read_again)


async def test_a_client_that_goes_away_does_not_end_the_reading_for_the_others(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key
) -> None:
    issuer.keys = [rsa_key]
    issuer.answering.clear()
    guarded = await make_guarded(jwks_url=issuer.url)
    first = asyncio.create_task(status(guarded, rsa_key))

    async def asked() -> bool:
        return issuer.reads == 1

    await eventually(asked)
    second = asyncio.create_task(status(guarded, rsa_key))
    first.cancel()
    await asyncio.wait([first])
    issuer.answering.set()
    assert await second == 200
    assert issuer.reads == 1


async def test_a_token_without_kid_is_taken_while_only_one_key_fits(
    make_guarded: MakeGuarded, issuer: JwksServer, rsa_key: Key, other_key: Key
) -> None:
    nameless = jwt.encode(claims_of({}), rsa_key.private, "RS256")
    for keys, expected in (([rsa_key], 200), ([rsa_key, other_key], 401)):
        issuer.keys = keys
        guarded = await make_guarded(jwks_url=issuer.url)
        assert (await guarded.as_bearer(nameless)).status_code == expected


def document(*keys: Any) -> bytes:
    return orjson.dumps({"keys": list(keys)})


@pytest.mark.parametrize(
    "change",
    [
        {"use": "enc"},
        {"alg": "RS512"},
        {"alg": "HS256"},
        {"kty": "EC"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"d": "AQAB"},
        {"n": "!"},
        {"n": ""},
        {"e": None},
        {"kid": 7},
    ],
)
def test_a_key_that_does_not_fit_is_left_out(rsa_key: Key, change: dict[str, Any]) -> None:
    good = rsa_key.jwk
    assert list(usable_keys(document({**good, **change}, good), ["RS256"])) == [("rsa-1", "RS256")]
    with pytest.raises(JwksFailure, match="no key for RS256"):
        usable_keys(document({**good, **change}), ["RS256"])


def test_a_private_key_that_was_published_is_left_out(rsa_key: Key) -> None:
    assert isinstance(rsa_key.private, RSAPrivateKey)
    private = RSAAlgorithm.to_jwk(rsa_key.private, as_dict=True)
    with pytest.raises(JwksFailure):
        usable_keys(document({**private, "kid": "p", "key_ops": None}), ["RS256"])


def test_an_rsa_key_that_is_too_short_is_left_out() -> None:
    with pytest.raises(JwksFailure):
        usable_keys(document(Key("short", bits=1024).jwk), ["RS256"])


def test_no_key_serves_an_hmac_algorithm(rsa_key: Key) -> None:
    oct_key = {"kty": "oct", "k": "c2VjcmV0", "kid": "o"}
    with pytest.raises(JwksFailure):
        usable_keys(document(oct_key, rsa_key.jwk), ["HS256"])


def test_the_first_of_two_keys_of_one_id_stands(rsa_key: Key, other_key: Key) -> None:
    twice = {**other_key.jwk, "kid": rsa_key.kid}
    both = usable_keys(document(rsa_key.jwk, twice), ["RS256"])[("rsa-1", "RS256")]
    alone = usable_keys(document(rsa_key.jwk), ["RS256"])[("rsa-1", "RS256")]
    assert both.public_numbers() == alone.public_numbers()
