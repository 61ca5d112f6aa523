"""Service tokens: what a machine may do with one, what nobody may, and how they end."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import Bus, BusError
from penstock.service.deciders import decider_of
from penstock.service.token_index import TokenIndex
from penstock.web.auth import ServiceTokens, deciding_user, service_tokens
from penstock.web.auth.grants import ServiceGrant
from penstock.web.auth.identity import Identity
from penstock.web.auth.service_tokens import RIGHTS, check_rights
from penstock.web.auth.stream_tokens import FIRST
from penstock.web.auth.token_records import LOOKUPS_AT_ONCE, USED_EVERY_S
from penstock.web.problems import Problem
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.fakes.guarded_server import REMOTE, Guarded, Kept, MemoryStore, StoreAway, bearer
from support.fakes.issuer import token
from support.real.nats import NatsServer

ADMIN = token(sub="root", scope="administer")
ROOT = Identity("root", frozenset({"administer"}), "bearer")
DECIDES = {"name": "n8n", "scopes": ["decide", "read"]}


async def create(guarded: Guarded, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return await guarded.http.post(
        "/v1/service-tokens", json={**DECIDES, **body}, headers=headers or bearer(ADMIN)
    )


async def new(guarded: Guarded, **body: Any) -> tuple[str, str]:
    """Make a service token; return the token and its id."""
    answer = await create(guarded, **body)
    assert answer.status_code == 201, answer.text
    return answer.json()["token"], answer.json()["id"]


async def test_a_token_is_told_once_with_its_rights(guarded: Guarded) -> None:
    rights: dict[str, Any] = {
        "roles": ["bots"],
        "tools": ["get_*"],
        "agents": ["vana"],
        "rules": ["payments"],
    }
    made = (await create(guarded, **rights, on_behalf_of=["ada"], lifetime_s=60)).json()
    secret = made.pop("token")
    assert secret.startswith("psv_")
    assert {name: made[name] for name in rights} == rights
    assert (made["user_id"], made["created_by"]) == ("service-token:n8n", "root")
    listed = await guarded.as_bearer(ADMIN, "/v1/service-tokens")
    assert listed.json() == {"tokens": [made]}
    kept = b"".join(guarded.store.values.values()).decode() + "".join(guarded.store.values)
    assert secret not in kept
    assert secret.removeprefix("psv_") not in kept


async def test_it_is_accepted_as_a_bearer_with_its_scopes_alone(guarded: Guarded) -> None:
    secret, _ = await new(guarded, scopes=["decide"])
    answer = await guarded.as_bearer(secret)
    assert answer.json() == {
        "user_id": "service-token:n8n",
        "scopes": ["decide"],
        "kind": "service",
    }
    assert (await guarded.get(f"/v1/runs/r1/events?token={secret}")).status_code == 401
    for cookie in ("__Host-penstock_token", "penstock_token"):
        as_cookie = await guarded.get(cookie=f"{cookie}={secret}", **REMOTE)
        assert as_cookie.status_code == 401
    assert (await guarded.http.post("/v1/login", headers=bearer(secret))).status_code == 400


@pytest.mark.parametrize("scope", ["start read raw decide automate act-as", "read"])
async def test_only_an_administrator_makes_lists_and_revokes(guarded: Guarded, scope: str) -> None:
    _, token_id = await new(guarded)
    headers = bearer(token(sub="alice", scope=scope))
    assert (await create(guarded, headers)).status_code == 403
    assert (await guarded.get("/v1/service-tokens", **headers)).status_code == 403
    gone = await guarded.http.delete(f"/v1/service-tokens/{token_id}", headers=headers)
    assert gone.status_code == 403
    assert len(guarded.store.values) == 1


@pytest.mark.parametrize("scopes", [["decide", "read"], ["start", "read", "raw", "automate"]])
async def test_it_can_make_no_tokens_of_any_kind(guarded: Guarded, scopes: list[str]) -> None:
    """Otherwise a copy of the token would outlive the token's revocation."""
    secret, _ = await new(guarded, scopes=scopes)
    assert (await create(guarded, bearer(secret))).status_code == 403
    stream_token = {"subjects": ["*.*"]}
    answer = await guarded.http.post("/v1/tokens", json=stream_token, headers=bearer(secret))
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["administer"]}, "administer"),
        ({"scopes": ["read", "act-as"]}, "act-as"),
        ({"scopes": ["all"]}, "all"),
        ({"scopes": ["decide", "start"], "tools": ["get_*"]}, "tools"),
        ({"scopes": ["read"], "agents": ["vana"]}, "agents"),
        ({"scopes": ["start"], "on_behalf_of": ["ada"]}, "on_behalf_of"),
        ({"scopes": ["decide", "automate"]}, "two tokens"),
        ({"name": "N8N"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": ""}, "name"),
        ({"lifetime_s": 0}, "lifetime_s"),
        ({"lifetime_s": 1e9}, "lifetime_s"),
        ({"tools": [""]}, "tools"),
        ({"on_behalf_of": "ada"}, "on_behalf_of"),
        ({"extra": 1}, "extra"),
    ],
)
async def test_a_token_that_cannot_be_is_refused_and_nothing_is_kept(
    guarded: Guarded, body: dict[str, Any], words: str
) -> None:
    answer = await create(guarded, **body)
    assert answer.status_code == 422, answer.text
    assert words in answer.text
    assert not guarded.store.values


def test_the_rights_that_go_together_are_a_closed_list() -> None:
    def allowed(scopes: tuple[str, ...], **limits: list[str]) -> bool:
        try:
            check_rights({"scopes": scopes, **limits})
        except Problem:
            return False
        return True

    subsets = [
        each for n in range(len(RIGHTS) + 1) for each in itertools.combinations(sorted(RIGHTS), n)
    ]
    for scopes in subsets:
        assert allowed(scopes) == (bool(scopes) and not {"automate", "decide"} <= set(scopes))
        limited = allowed(scopes, tools=["x"])
        assert limited == (scopes in (("decide",), ("decide", "read")))


async def test_a_revoked_token_is_refused_from_then_on(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    other, _ = await new(guarded)
    path = f"/v1/service-tokens/{token_id}"
    assert (await guarded.http.delete(path, headers=bearer(ADMIN))).status_code == 204
    assert (await guarded.as_bearer(secret)).status_code == 401
    assert (await guarded.as_bearer(other)).status_code == 200
    assert (await guarded.http.delete(path, headers=bearer(ADMIN))).status_code == 404


async def test_a_stream_of_a_revoked_token_ends(guarded: Guarded) -> None:
    secret, token_id = await new(guarded, scopes=["read"])
    path = "/v1/runs/r1/events"
    async with guarded.http.stream("GET", path, headers=bearer(secret)) as stream:
        pieces = stream.aiter_bytes()
        assert await anext(pieces) == b"data: begun\n\n"
        await guarded.services.revoke(token_id)
        assert await anext(pieces) == b"data: over\n\n"


async def test_an_expired_token_is_refused_and_not_listed() -> None:
    now = 1000.0
    tokens = ServiceTokens(MemoryStore(), StoreAway, lambda: now)
    secret, _ = await tokens.issue(ROOT, "ci", 60, scopes=["start"])
    assert (await tokens.identify(secret)).scopes == {"start"}
    now = 1060.0
    with pytest.raises(Problem, match="expired") as refused:
        await tokens.identify(secret)
    assert refused.value.status == 401
    assert await tokens.listed() == []


async def test_the_last_use_is_known_to_a_minute_and_never_brings_a_token_back() -> None:
    now, store = 1000.0, MemoryStore()
    tokens = ServiceTokens(store, StoreAway, lambda: now)
    secret, made = await tokens.issue(ROOT, "ci", 600, scopes=["start"])
    for later in (0, 1, USED_EVERY_S - 1):
        now = 1000.0 + later
        await tokens.identify(secret)
    assert [each.last_used_at for each in await tokens.listed()] == [1000.0]
    now = 1000.0 + USED_EVERY_S
    read = await store.get(f"service.{made.id}")
    assert read is not None

    async def get(key: str) -> Any:  # the token is revoked between the read and the note
        await store.delete(key)
        return read

    store.get = get  # type: ignore[method-assign]  # the revocation in between
    await tokens.identify(secret)
    assert store.values == {}


async def test_there_is_a_limit_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_tokens, "MAX_TOKENS", 3)
    tokens = ServiceTokens(MemoryStore(), StoreAway)
    for _ in range(3):
        await tokens.issue(ROOT, "ci", 60, scopes=["start"])
    with pytest.raises(Problem, match="revoke some") as refused:
        await tokens.issue(ROOT, "ci", 60, scopes=["start"])
    assert refused.value.status == 409


async def test_no_tenant_takes_the_places_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_tokens, "MAX_TOKENS", 4)
    tokens = ServiceTokens(MemoryStore(), StoreAway)
    of_acme = replace(ROOT, tenant="acme")
    for _ in range(2):
        await tokens.issue(of_acme, "ci", 60, scopes=["start"])
    with pytest.raises(Problem, match="2 service tokens of this tenant"):
        await tokens.issue(of_acme, "ci", 60, scopes=["start"])
    for tenant in ("globex", ""):
        await tokens.issue(replace(ROOT, tenant=tenant), "ci", 60, scopes=["start"])


async def test_a_store_that_is_away_is_503_and_no_refusal_of_the_token(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    guarded.store.away = True
    answers: list[httpx.Response] = [
        await guarded.as_bearer(secret),
        await create(guarded),
        await guarded.as_bearer(ADMIN, "/v1/service-tokens"),
        await guarded.http.delete(f"/v1/service-tokens/{token_id}", headers=bearer(ADMIN)),
    ]
    assert [each.status_code for each in answers] == [503] * 4


# who tries many


class SlowStore(MemoryStore):
    """A store that answers one reader after another, and counts who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reading = self.most = 0

    async def get(self, key: str) -> Kept | None:
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            await self.go_on.wait()
            return await super().get(key)
        finally:
            self.reading -= 1


async def test_unknown_tokens_are_looked_up_a_few_at_a_time_and_nobody_is_refused() -> None:
    store = SlowStore()
    tokens = ServiceTokens(store, StoreAway)
    known, fresh = [
        (await tokens.issue(ROOT, name, 60, scopes=["read"]))[0] for name in ("known", "new")
    ]
    await tokens.identify(known)
    store.go_on.clear()
    guesses = [asyncio.create_task(tokens.identify(f"psv_{n:043d}")) for n in range(300)]
    later = asyncio.create_task(tokens.identify(fresh))

    async def is_full() -> bool:
        return store.reading == LOOKUPS_AT_ONCE

    await eventually(is_full)
    at_once = asyncio.create_task(tokens.identify(known))  # it has been found before

    async def reads_known() -> bool:
        return store.reading == LOOKUPS_AT_ONCE + 1

    await eventually(reads_known)
    store.go_on.set()
    assert (await at_once).user_id == "service-token:known"
    assert (await later).user_id == "service-token:new"
    refusals = await asyncio.gather(*guesses, return_exceptions=True)
    assert {each.status for each in refusals if isinstance(each, Problem)} == {401}
    assert store.most == LOOKUPS_AT_ONCE + 1


async def test_a_jwt_can_never_have_the_name_of_a_service_token(guarded: Guarded) -> None:
    answer = await guarded.as_bearer(token(sub="service-token:n8n"))
    assert answer.status_code == 401


# for whom a token decides


@pytest.mark.parametrize(
    ("allowed", "wanted", "expected"),
    [
        ((), None, "service-token:ci"),
        ((), "service-token:ci", "service-token:ci"),
        ((), "ada", None),
        (("ada",), "ada", "ada"),
        (("ada",), "bob", None),
        (("ada",), "*", None),
        (("*",), "bob", "bob"),
    ],
)
def test_it_decides_for_a_person_only_where_it_may(
    allowed: tuple[str, ...], wanted: str | None, expected: str | None
) -> None:
    grant = ServiceGrant("id", tools=("get_*",), on_behalf_of=allowed)
    who = Identity("service-token:ci", frozenset({"decide"}), "service", service=grant)
    if expected is None:
        with pytest.raises(Problem) as refused:
            deciding_user(who, wanted)
        assert refused.value.status == 403
        return
    decider = decider_of(who, "api", deciding_user(who, wanted))
    assert decider.name == "service-token:ci"
    assert decider.on_behalf_of == (expected if expected != who.user_id else None)
    assert decider.token_id == "id"
    assert decider.limits is not None
    assert decider.limits.tools == ["get_*"]


# the real store


async def test_tokens_of_both_kinds_share_a_bucket_and_no_list(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url) as bus:
        index = TokenIndex(bus)
        one, other = _services(bus), _services(bus)
        secret, made = await one.issue(ROOT, "ci", 600, scopes=["read"])
        assert (await other.identify(secret)).user_id == "service-token:ci"
        assert [each.id for each in await other.listed()] == [made.id]
        assert await index.page(None, FIRST, bus.clock.time(), 10) == []
        entry = await bus.bucket("tokens").get(f"service.{made.id}")
        assert entry is not None
        assert orjson.loads(entry.value)["last_used_at"] is not None
        # The bound of a revocation: the next request, in every process.
        await one.revoke(made.id)
        for each in (one, other):
            with pytest.raises(Problem, match="revoked"):
                await each.identify(secret)


async def test_of_uses_and_a_revocation_at_once_the_revocation_wins(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url) as bus:
        for _ in range(20):
            pods = [_services(bus) for _ in range(4)]
            secret, made = await pods[0].issue(ROOT, "ci", 600, scopes=["read"])
            uses = (each.identify(secret) for each in pods)
            await asyncio.gather(*uses, pods[0].revoke(made.id), return_exceptions=True)
            with pytest.raises(Problem, match="revoked"):
                await pods[1].identify(secret)


def _services(bus: Bus) -> ServiceTokens:
    return ServiceTokens(bus.bucket("tokens"), BusError, bus.clock.time)
