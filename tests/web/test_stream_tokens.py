"""Stream tokens: what they open, what they never open, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import Bus, BusError, BusSettings
from penstock.service.token_index import TokenIndex
from penstock.web.auth import Auth, AuthConfig, StreamTokens
from penstock.web.auth.grants import Permission
from penstock.web.auth.identity import Identity, acting_user
from penstock.web.auth.stream_tokens import MAX_PER_USER
from penstock.web.auth.token_records import USED_EVERY_S
from penstock.web.problems import Problem
from support.drive.waiting import eventually
from support.fakes.guarded_server import Guarded, MemoryStore, StoreAway, bearer
from support.fakes.issuer import token
from support.real.nats import NatsServer

EVENTS = "/v1/runs/r1/events"
ALL = {"subjects": ["*.*"]}
ALICE = Identity("alice", frozenset({"read"}), "bearer")


async def create(
    guarded: Guarded, body: Any = None, claims: dict[str, Any] | None = None
) -> httpx.Response:
    headers = bearer(token(**(claims or {})))
    return await guarded.http.post("/v1/tokens", json=body or ALL, headers=headers)


async def new(guarded: Guarded, **fields: Any) -> tuple[str, str]:
    """Create a stream token for Alice; return the token and its id."""
    response = await create(guarded, {**ALL, **fields})
    assert response.status_code == 201, response.text
    return response.json()["token"], response.json()["id"]


async def opens(guarded: Guarded, stream_token: str) -> int:
    guarded.held.set()
    return (await guarded.get(f"{EVENTS}?token={stream_token}")).status_code


async def test_a_token_is_told_once_with_what_it_is_limited_to(guarded: Guarded) -> None:
    body = {"name": "n8n", "subjects": ["llm.*"], "runs": ["r1"], "sessions": ["s1"]}
    response = await create(guarded, {**body, "lifetime_s": 60})
    assert response.status_code == 201
    shown = response.json()
    assert shown.pop("token").startswith("pst_")
    assert {name: shown[name] for name in body} == body
    assert shown["user_id"] == "alice"
    listed = await guarded.as_bearer(token(), "/v1/tokens")
    assert listed.json() == {"tokens": [shown], "next": None}


async def test_the_store_never_sees_the_token(guarded: Guarded) -> None:
    secret, _ = await new(guarded)
    kept = b"".join(guarded.store.values.values()).decode() + "".join(guarded.store.values)
    assert secret not in kept
    assert secret.removeprefix("pst_") not in kept


async def test_it_opens_a_get_event_stream_and_reads_only(guarded: Guarded) -> None:
    secret, _ = await new(guarded)
    assert await opens(guarded, secret) == 200
    identity = await guarded.tokens.identify(secret)
    assert (identity.user_id, identity.scopes) == ("alice", frozenset({"read"}))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/runs"),
        ("POST", "/v1/runs"),
        ("POST", EVENTS),
        ("HEAD", EVENTS),
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("GET", "/v1/csrf"),
        ("POST", "/v1/login"),
        ("GET", "/run_sse"),
        ("GET", "/v1/runs/r1/events/more"),
        ("GET", "/v1/runs//events"),
    ],
)
async def test_it_opens_nothing_else(guarded: Guarded, method: str, path: str) -> None:
    secret, _ = await new(guarded)
    response = await guarded.http.request(method, f"{path}?token={secret}")
    assert response.status_code == 401


async def test_it_is_no_bearer_and_no_cookie(guarded: Guarded) -> None:
    secret, _ = await new(guarded)
    assert (await guarded.as_bearer(secret, EVENTS)).status_code == 401
    cookie = f"__Host-penstock_token={secret}"
    assert (await guarded.get(EVENTS, cookie=cookie)).status_code == 401


async def test_with_another_credential_beside_it_nobody_knows_who_calls(guarded: Guarded) -> None:
    secret, _ = await new(guarded)
    path = f"{EVENTS}?token={secret}"
    assert (await guarded.as_bearer(token(), path)).status_code == 400
    assert (await guarded.get(f"{path}&token={secret}")).status_code == 400


@pytest.mark.parametrize(
    "made_up", ["", "x", "pst_", "pst_" + "A" * 43, "pst_" + "A" * 5000, "pst_../../x", "%00"]
)
async def test_an_invented_one_is_refused(guarded: Guarded, made_up: str) -> None:
    assert await opens(guarded, made_up) == 401


async def test_the_id_of_a_token_is_no_token(guarded: Guarded) -> None:
    _, token_id = await new(guarded)
    for text in (token_id, f"pst_{token_id}", f"pst_{token_id}{'A' * 11}"):
        assert await opens(guarded, text) == 401


async def test_one_that_shares_half_its_hash_with_a_known_one_is_refused(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    record = orjson.loads(guarded.store.values[token_id])
    guarded.store.values[token_id] = orjson.dumps(record | {"digest": token_id + "0" * 32})
    assert await opens(guarded, secret) == 401


# the end of a token ----------------------------------------------------------------------------


async def test_one_that_was_revoked_is_refused(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    kept, _ = await new(guarded)
    response = await guarded.http.delete(f"/v1/tokens/{token_id}", headers=bearer(token()))
    assert response.status_code == 204
    assert await opens(guarded, secret) == 401
    assert await opens(guarded, kept) == 200


async def test_one_that_has_expired_is_refused_though_the_store_has_it_still(
    guarded: Guarded,
) -> None:
    secret, token_id = await new(guarded)
    record = orjson.loads(guarded.store.values[token_id])
    guarded.store.values[token_id] = orjson.dumps(record | {"expires_at": 1.0})
    assert await opens(guarded, secret) == 401
    assert (await guarded.as_bearer(token(), "/v1/tokens")).json() == {"tokens": [], "next": None}


async def test_a_stream_ends_when_its_stream_token_expires(guarded: Guarded) -> None:
    secret, _ = await new(guarded, lifetime_s=1)
    async with asyncio.timeout(30):
        response = await guarded.get(f"{EVENTS}?token={secret}")
    assert response.text.endswith("data: over\n\n")


async def test_a_stream_ends_when_its_stream_token_is_revoked(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    async with asyncio.timeout(30), guarded.http.stream("GET", f"{EVENTS}?token={secret}") as open_:
        text = open_.aiter_text()
        assert await anext(text) == "data: begun\n\n"
        await guarded.http.delete(f"/v1/tokens/{token_id}", headers=bearer(token()))
        assert await anext(text) == "data: over\n\n"


async def test_a_stream_continues_while_nobody_can_say_whether_its_token_holds(
    guarded: Guarded,
) -> None:
    secret, _ = await new(guarded)
    async with asyncio.timeout(30), guarded.http.stream("GET", f"{EVENTS}?token={secret}") as open_:
        text = open_.aiter_text()
        assert await anext(text) == "data: begun\n\n"
        guarded.store.away, guarded.store.asked = True, 0

        async def asked() -> bool:
            return guarded.store.asked > 2

        await eventually(asked)
        guarded.held.set()
        assert await anext(text) == "data: held\n\n"


# ownership -------------------------------------------------------------------------------------


async def test_another_users_token_is_neither_listed_nor_revoked(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    bob = bearer(token(sub="bob"))
    assert (await guarded.http.get("/v1/tokens", headers=bob)).json() == {
        "tokens": [],
        "next": None,
    }
    assert (await guarded.http.delete(f"/v1/tokens/{token_id}", headers=bob)).status_code == 404
    assert await opens(guarded, secret) == 200


async def test_an_administrator_lists_and_revokes_the_tokens_of_all_users(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    admin = bearer(token(sub="root", scope="administer"))
    listed = (await guarded.http.get("/v1/tokens", headers=admin)).json()["tokens"]
    assert [known["id"] for known in listed] == [token_id]
    assert (await guarded.http.delete(f"/v1/tokens/{token_id}", headers=admin)).status_code == 204
    assert await opens(guarded, secret) == 401


@pytest.mark.parametrize("token_id", ["x", "0" * 32, "*", ">", "a.b", "0" * 32 + "%2e"])
async def test_an_unknown_id_is_404(guarded: Guarded, token_id: str) -> None:
    await new(guarded)
    response = await guarded.http.delete(f"/v1/tokens/{token_id}", headers=bearer(token()))
    assert response.status_code == 404
    assert len(guarded.store.values) == 1


async def test_a_token_that_may_not_read_gives_none_that_may(guarded: Guarded) -> None:
    assert (await create(guarded, claims={"scope": "start"})).status_code == 403


async def test_nobody_fills_the_store(guarded: Guarded) -> None:
    for _ in range(MAX_PER_USER):
        await guarded.tokens.issue(ALICE, "", 60, runs=["r1"])
    assert (await create(guarded)).status_code == 409
    assert (await create(guarded, claims={"sub": "bob"})).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"subjects": []},
        {"subjects": ["llm"]},
        {"subjects": ["llm.>"]},
        {"subjects": ["llm.*.r1"]},
        {"subjects": ["*.*\n"]},
        {"subjects": "llm.*"},
        {"subjects": [7]},
        {"runs": [""]},
        {"runs": ["x" * 513]},
        {"runs": ["r1"] * 101},
        {"sessions": [None]},
        {**ALL, "lifetime_s": 0},
        {**ALL, "lifetime_s": 1e12},
        {**ALL, "lifetime_s": "60"},
        {**ALL, "user_id": "bob"},
        {**ALL, "scopes": ["administer"]},
        {**ALL, "users": []},
        {**ALL, "users": "bob"},
        {**ALL, "users": [""]},
        [],
        "x",
    ],
)
async def test_a_request_that_is_not_valid_is_422_and_keeps_nothing(
    guarded: Guarded, body: Any
) -> None:
    response = await guarded.http.post("/v1/tokens", json=body, headers=bearer(token()))
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert guarded.store.values == {}


async def test_while_the_store_is_away_the_answer_is_503(guarded: Guarded) -> None:
    secret, token_id = await new(guarded)
    guarded.store.away = True
    mine = bearer(token())
    assert await opens(guarded, secret) == 503
    assert (await create(guarded)).status_code == 503
    assert (await guarded.http.get("/v1/tokens", headers=mine)).status_code == 503
    assert (await guarded.http.delete(f"/v1/tokens/{token_id}", headers=mine)).status_code == 503


async def test_tokens_are_listed_in_pages(guarded: Guarded) -> None:
    made = [(await guarded.tokens.issue(ALICE, f"{n}", 60, runs=["r1"]))[1].id for n in range(5)]
    await guarded.tokens.issue(replace(ALICE, user_id="bob"), "", 60, runs=["r1"])
    mine, found = bearer(token()), []
    query = {"limit": "2"}
    while "after" not in query or query["after"] is not None:
        page = (await guarded.http.get("/v1/tokens", params=query, headers=mine)).json()
        assert len(page["tokens"]) <= 2
        found += [each["id"] for each in page["tokens"]]
        query["after"] = page["next"]
    assert found == made
    everything = bearer(token(scope="administer"))
    page = (await guarded.http.get("/v1/tokens", headers=everything)).json()
    assert (len(page["tokens"]), page["next"]) == (6, None)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after=", "after=x", "after=WzFd", "after=é"]
)
async def test_a_page_of_tokens_that_cannot_be_is_422(guarded: Guarded, query: str) -> None:
    answer = await guarded.http.get(f"/v1/tokens?{query}", headers=bearer(token()))
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.json()["detail"]


async def test_the_bucket_of_the_bus_is_a_store(nats_server: NatsServer) -> None:
    bus = await Bus.connect(BusSettings(url=nats_server.url))
    tokens = StreamTokens(TokenIndex(bus), BusError)
    secret, known = await tokens.issue(ALICE, "n8n", 60, sessions=["s1"])
    identity = await tokens.identify(secret)
    assert identity.grant is not None
    assert identity.grant.sessions == ("s1",)
    [listed] = await tokens.listed(ALICE)
    assert listed.last_used_at is not None
    longer = await tokens.extend(ALICE, known.id, 600)
    assert longer.expires_at > known.expires_at + 500
    assert await tokens.expiry_of(known.id) == longer.expires_at
    await tokens.revoke(ALICE, known.id)
    assert await tokens.listed(ALICE) == []
    assert await tokens.expiry_of(known.id) is None
    await bus.close()


async def test_a_token_expires_by_the_clock_that_all_share() -> None:
    shared = 1_000_000.0  # far from this machine's clock
    tokens = StreamTokens(MemoryStore(), StoreAway, lambda: shared)
    stream_token, known = await tokens.issue(ALICE, "n8n", 60)
    assert (known.created_at, known.expires_at) == (1_000_000, 1_000_060)
    auth = Auth(AuthConfig(), tokens, look_again_s=0.01)
    shared += 59
    identity = await tokens.identify(stream_token)
    over = asyncio.create_task(auth.wait_until_credential_ends(identity))
    await asyncio.wait([over], timeout=0.05)
    assert not over.done()
    shared += 2
    with pytest.raises(Problem):
        await tokens.identify(stream_token)
    assert await tokens.listed(ALICE) == []
    await asyncio.wait_for(over, 30)


# reach ---------------------------------------------------------------------------------------


def identity_for(*scopes: Permission, user: str = "service") -> Identity:
    return Identity(user, frozenset(("read", *scopes)), "bearer")


async def test_a_token_says_whose_runs_it_reaches(guarded: Guarded) -> None:
    everybody = {"sub": "service", "scope": "read act-as"}
    for asked, shown in (
        (None, ["service"]),
        (["bob", "carol", "bob"], ["bob", "carol"]),
        ("*", "*"),
    ):
        body = ALL if asked is None else {**ALL, "users": asked}
        made = await create(guarded, body, everybody)
        assert made.status_code == 201, made.text
        assert made.json()["users"] == shown
    listed = await guarded.as_bearer(token(**everybody), "/v1/tokens")
    assert [each["users"] for each in listed.json()["tokens"]] == [
        ["service"],
        ["bob", "carol"],
        "*",
    ]


@pytest.mark.parametrize("users", [["bob"], ["alice", "bob"], ["*"], "*"])
async def test_a_token_does_not_reach_users_that_its_maker_does_not_reach(
    guarded: Guarded, users: Any
) -> None:
    for user in ("alice", "*"):  # the name `*` does not reach all users
        refused = await create(guarded, {**ALL, "users": users}, {"sub": user})
        assert refused.status_code == 403, refused.text
        assert "act-as or administer" in refused.json()["detail"]
    assert guarded.store.values == {}
    own = await create(guarded, {**ALL, "users": ["alice"]}, {"sub": "alice"})
    assert own.json()["users"] == ["alice"]


async def test_a_caller_that_may_not_read_makes_no_token_that_may(guarded: Guarded) -> None:
    for scope in ("administer", "act-as", "start decide raw administer act-as"):
        refused = await create(guarded, {**ALL, "users": "*"}, {"scope": scope})
        assert refused.status_code == 403
        assert "scope read" in refused.json()["detail"]
    assert guarded.store.values == {}


async def test_a_token_sees_the_users_whom_it_names_and_nobody_else() -> None:
    tokens = StreamTokens(MemoryStore(), StoreAway)

    async def made(*users: str) -> Identity:
        secret, _ = await tokens.issue(identity_for("act-as"), "", 60, users=users)
        return await tokens.identify(secret)

    own, two, all_ = await made(), await made("bob", "carol"), await made("*")
    asked = ("service", "bob", "carol", "dave")
    assert [own.may_see_runs_of(user) for user in asked] == [True, False, False, False]
    assert [two.may_see_runs_of(user) for user in asked] == [False, True, True, False]
    assert [all_.may_see_runs_of(user) for user in asked] == [True, True, True, True]
    assert (own.owners, two.owners, all_.owners) == (
        frozenset({"service"}),
        frozenset({"bob", "carol"}),
        None,
    )
    assert acting_user(two, "carol") == "carol"
    assert acting_user(await made("bob"), None) == "bob"
    assert acting_user(all_, None) == "service"
    for identity, wanted, status in ((two, None, 422), (two, "service", 403), (own, "bob", 403)):
        with pytest.raises(Problem) as refused:
            acting_user(identity, wanted)
        assert refused.value.status == status


async def test_a_token_from_before_there_was_a_reach_is_its_makers() -> None:
    store = MemoryStore()
    tokens = StreamTokens(store, StoreAway)
    secret, known = await tokens.issue(ALICE, "old", 60)
    document = orjson.loads(store.values[known.id])
    del document["users"], document["last_used_at"]
    store.values[known.id] = orjson.dumps(document | {"of_another_version": 1})
    identity = await tokens.identify(secret)
    assert identity.owners == frozenset({"alice"})


# extension -----------------------------------------------------------------------------------


async def patch(guarded: Guarded, token_id: str, body: Any, **claims: Any) -> httpx.Response:
    path = f"/v1/tokens/{token_id}"
    return await guarded.http.patch(path, json=body, headers=bearer(token(**claims)))


async def test_its_maker_extends_a_token(guarded: Guarded) -> None:
    _, token_id = await new(guarded, lifetime_s=60)
    before = (await guarded.as_bearer(token(), "/v1/tokens")).json()["tokens"][0]
    answer = await patch(guarded, token_id, {"lifetime_s": 3600})
    assert answer.status_code == 200
    assert answer.json()["expires_at"] > before["expires_at"]
    assert answer.json() | {"expires_at": before["expires_at"]} == before


async def test_nobody_else_does(guarded: Guarded) -> None:
    _, token_id = await new(guarded)
    kept = dict(guarded.store.values)
    assert (await patch(guarded, token_id, {"lifetime_s": 9}, sub="bob")).status_code == 404
    assert (await patch(guarded, "0" * 32, {"lifetime_s": 9})).status_code == 404
    assert (await patch(guarded, token_id, {"lifetime_s": 9}, scope="start")).status_code == 403
    assert guarded.store.values == kept
    admin = await patch(guarded, token_id, {"lifetime_s": 9}, sub="x", scope="administer")
    assert admin.status_code == 200


async def test_a_caller_who_lost_the_rights_cannot_extend_the_token(guarded: Guarded) -> None:
    made = await create(guarded, {**ALL, "users": "*"}, {"scope": "read act-as"})
    refused = await patch(guarded, made.json()["id"], {"lifetime_s": 3600}, scope="read")
    assert refused.status_code == 403
    again = await patch(guarded, made.json()["id"], {"lifetime_s": 3600}, scope="read act-as")
    assert again.status_code == 200


@pytest.mark.parametrize(
    "body", [{}, {"lifetime_s": 0}, {"lifetime_s": 1e9}, {"lifetime_s": "9"}, {"users": "*"}, []]
)
async def test_a_change_that_is_not_valid_changes_nothing(guarded: Guarded, body: Any) -> None:
    _, token_id = await new(guarded)
    kept = dict(guarded.store.values)
    assert (await patch(guarded, token_id, body)).status_code == 422
    assert guarded.store.values == kept


# use, and the end ------------------------------------------------------------------------------


async def test_the_list_says_when_a_token_was_last_used_to_a_minute() -> None:
    now = 1_000_000.0
    store = MemoryStore()
    tokens = StreamTokens(store, StoreAway, lambda: now)
    secret, _ = await tokens.issue(ALICE, "n8n", 3600)
    assert (await tokens.listed(ALICE))[0].last_used_at is None
    for _ in range(50):
        await tokens.identify(secret)
    assert (await tokens.listed(ALICE))[0].last_used_at == now
    assert store.writes == 2
    now += USED_EVERY_S
    await tokens.identify(secret)
    assert (await tokens.listed(ALICE))[0].last_used_at == now
    assert store.writes == 3


@pytest.mark.parametrize("revoked", [False, True], ids=["extended", "revoked"])
async def test_a_use_undoes_nothing_that_happens_at_the_same_time(revoked: bool) -> None:
    store = MemoryStore()
    tokens, other = StreamTokens(store, StoreAway), StreamTokens(store, StoreAway)
    secret, known = await tokens.issue(ALICE, "n8n", 60)
    get = store.get

    async def get_and_meanwhile(key: str) -> Any:
        found = await get(key)
        store.get = get  # type: ignore[method-assign]
        if revoked:
            await other.revoke(ALICE, known.id)
        else:
            await other.extend(ALICE, known.id, 3600)
        return found

    store.get = get_and_meanwhile  # type: ignore[method-assign]
    await tokens.identify(secret)
    listed = await tokens.listed(ALICE)
    assert [each.expires_at > known.expires_at + 3000 for each in listed] == [True] * (not revoked)


async def test_an_open_stream_is_warned_and_continues_when_its_token_is_extended() -> None:
    now = 1_000_000.0
    tokens = StreamTokens(MemoryStore(), StoreAway, lambda: now)
    secret, known = await tokens.issue(ALICE, "n8n", 1000)
    auth = Auth(AuthConfig(token_warning_s=100), tokens, look_again_s=0.01)
    warned: list[float] = []
    over = asyncio.create_task(
        auth.wait_until_credential_ends(await tokens.identify(secret), warned.append)
    )

    async def warned_times(count: int) -> None:
        await eventually_(lambda: len(warned) == count)

    await asyncio.sleep(0.05)
    assert warned == []
    now += 950
    await warned_times(1)
    assert warned == [50]
    await tokens.extend(ALICE, known.id, 1000)
    now += 500  # well past the token's first expiry
    await asyncio.sleep(0.05)
    assert not over.done()
    assert len(warned) == 1
    now += 450
    await warned_times(2)
    now += 60
    await asyncio.wait_for(over, 30)
    assert len(warned) == 2


async def eventually_(holds: Callable[[], bool]) -> None:
    async def probe() -> bool:
        return holds()

    await eventually(probe, what="the warning")
