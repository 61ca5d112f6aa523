"""A token that was verified before is accepted at little cost, and only while it is still valid."""

from __future__ import annotations

import time
from typing import Any

import jwt
import pytest

from penstock.web.auth import jwt as checked
from penstock.web.auth.jwt import Secret, Verifier
from penstock.web.problems import Problem, invalid_token
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET, Key, token


class Issuer:
    """The keys of an issuer, which a test changes."""

    def __init__(self, **keys: Any) -> None:
        self.keys = keys

    async def key(self, kid: str | None, algorithm: str) -> Any:
        if kid not in self.keys:
            raise invalid_token("the token names no key of ours")
        return self.keys[kid]

    async def close(self) -> None: ...


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each token is added whose signature is checked."""
    found: list[str] = []
    decode = jwt.decode

    def counted(token: str, *args: Any, **options: Any) -> Any:
        found.append(token)
        return decode(token, *args, **options)

    monkeypatch.setattr(jwt, "decode", counted)
    return found


async def test_the_signature_of_a_token_is_checked_once(decoded: list[str]) -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",))
    one, other = token(sub="alice"), token(sub="bob")
    for _ in range(3):
        assert (await verifier.verify(one)).user_id == "alice"
        assert (await verifier.verify(other)).user_id == "bob"
    assert decoded == [one, other]


async def test_a_remembered_token_is_refused_after_its_expiry() -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",), leeway_s=1.0)
    short = token(exp=int(time.time()) + 2)
    assert (await verifier.verify(short)).user_id == "alice"

    async def is_refused() -> str | None:
        try:
            await verifier.verify(short)
        except Problem as error:
            return error.detail
        return None

    assert await eventually(is_refused, what="the refusal") == "the token has expired"


async def test_a_remembered_token_is_refused_when_the_issuer_has_withdrawn_its_key() -> None:
    key = Key("first", "ES256")
    issuer = Issuer(first=key.private.public_key())
    verifier = Verifier(issuer, ("ES256",))
    signed = key.token()
    assert (await verifier.verify(signed)).user_id == "alice"
    issuer.keys.clear()
    with pytest.raises(Problem, match="names no key of ours"):
        await verifier.verify(signed)


async def test_a_remembered_token_is_refused_when_its_key_id_belongs_to_another_key() -> None:
    key = Key("first", "ES256")
    issuer = Issuer(first=key.private.public_key())
    verifier = Verifier(issuer, ("ES256",))
    signed = key.token()
    assert (await verifier.verify(signed)).user_id == "alice"
    issuer.keys["first"] = Key("first", "ES256").private.public_key()
    with pytest.raises(Problem, match="the signature does not hold"):
        await verifier.verify(signed)


async def test_a_token_is_checked_again_when_the_clock_was_set_back(
    decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",))
    one = token()
    await verifier.verify(one)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    await verifier.verify(one)
    assert decoded == [one, one]


async def test_a_changed_copy_of_a_remembered_token_is_refused() -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",))
    one = token(sub="alice")
    await verifier.verify(one)
    head, _, signature = one.split(".")
    with pytest.raises(Problem, match="the signature does not hold"):
        await verifier.verify(".".join((head, token(sub="bob").split(".")[1], signature)))


async def test_a_refused_token_is_not_remembered(decoded: list[str]) -> None:
    verifier = Verifier(Secret(SECRET), ("HS256",))
    other = jwt.encode({"sub": "alice", "exp": 2**40}, "another-secret-of-tests-for-tokens-1")
    for _ in range(2):
        with pytest.raises(Problem):
            await verifier.verify(other)
    assert decoded == [other, other]


async def test_the_oldest_token_is_forgotten_when_too_many_are_remembered(
    decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "MAX_VERIFIED", 2)
    verifier = Verifier(Secret(SECRET), ("HS256",))
    first, second, third = (token(sub=f"user-{number}") for number in range(3))
    for each in (first, second, third, third, second, first):
        await verifier.verify(each)
    assert decoded == [first, second, third, first]
