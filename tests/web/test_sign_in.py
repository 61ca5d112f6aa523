"""People sign in at a real OpenID Connect provider (Authlib's), and nobody signs in as another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from penstock.settings import AuthSettings
from penstock.web.auth import oidc
from penstock.web.auth.jwks import JwksFailure
from penstock.web.auth.sign_in import FLOW_S
from penstock_edge.settings import EdgeSettings
from support.fakes.guarded_server import Guarded
from support.fakes.issuer import JwksServer
from support.real import upstreams
from support.real.servers import SharedRun

pytestmark = pytest.mark.real

CLIENT, SECRET = "penstock", "a-secret-of-the-client/+%"  # those of tests/upstreams/oidc/app.py
TOKEN, FLOW = "penstock_token", "penstock_sign_in"
BACK = "/console/runs?status=paused"


@pytest.fixture(scope="module")
def provider(test_run: SharedRun) -> str:
    return upstreams.shared(upstreams.OIDC, test_run).url


@pytest.fixture(scope="module")
async def guarded(provider: str) -> AsyncIterator[Guarded]:
    async with AsyncExitStack() as stack:
        server = Guarded(**settings(provider))
        await server.start(stack)
        yield server


def settings(provider: str, **more: Any) -> dict[str, Any]:
    return {
        "oidc_issuer": provider,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SECRET,
        "public_url": "http://127.0.0.1:1",
        "cookie_secure": False,
        "tenant_claim": "org",
        "leeway_s": 0,
        **more,
    }


class Browser:
    """A browser of one person, with the cookies of Penstock."""

    def __init__(self, guarded: Guarded) -> None:
        self.http = httpx.AsyncClient(base_url=guarded.http.base_url, timeout=30)
        self.answered = ""  # the last path and query to which the provider has sent it back

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def begins(self, place: str = BACK) -> str:
        """Return the provider's URL."""
        response = await self.http.get("/v1/oidc/login", params={"next": place})
        assert response.status_code == 302, response.headers
        return response.headers["location"]

    async def grants(self, url: str, user: str, **claims: Any) -> None:
        """Sign in at the provider, which puts these claims into the ID token."""
        async with httpx.AsyncClient(timeout=30) as http:
            form = {"user": user, "claims": json.dumps(claims)}
            response = await http.post(url, data=form)
        assert response.status_code == 302, response.text
        back = urlsplit(response.headers["location"])
        self.answered = f"{back.path}?{back.query}"

    async def comes_back(self, **changes: str) -> str:
        """Return to which page the callback leads."""
        path, _, query = self.answered.partition("?")
        answer = {name: value for name, [value] in parse_qs(query).items()} | changes
        response = await self.http.get(f"{path}?{urlencode(answer)}")
        assert response.status_code == 303, response.text
        assert response.headers["cache-control"] == "no-store"
        return response.headers["location"]

    async def signs_in(self, user: str, place: str = BACK, **claims: Any) -> str:
        await self.grants(await self.begins(place), user, **claims)
        return await self.comes_back()

    async def who(self) -> dict[str, Any] | int:
        """Return who Penstock says the caller is, or the status of its refusal."""
        response = await self.http.get("/v1/me")
        return response.json() if response.is_success else response.status_code


@pytest.fixture
async def browser(guarded: Guarded) -> AsyncIterator[Browser]:
    async with Browser(guarded) as found:
        yield found


def refused(reason: str, place: str = BACK) -> str:
    return f"{place}{'&' if '?' in place else '?'}sign_in={reason}"


async def test_a_person_signs_in_and_comes_back_to_the_page_as_a_caller(browser: Browser) -> None:
    assert await browser.who() == 401
    url = await browser.begins()
    asked = parse_qs(urlsplit(url).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == ["http://127.0.0.1:1/v1/oidc/callback"]
    await browser.grants(url, "alice")
    assert await browser.comes_back() == BACK
    who = await browser.who()
    assert isinstance(who, dict)
    assert who["expires_at"] is not None
    expected = {"user_id": "alice", "credential": "cookie", "roles": ["lead"], "tenant": "acme"}
    assert expected.items() <= who.items()
    assert who["scopes"] == ["decide", "raw", "read", "start"]
    assert FLOW not in browser.http.cookies
    # A cookie changes something only with a CSRF token, as after any other sign-in.
    remote = {"x-forwarded-for": "203.0.113.9", "origin": str(browser.http.base_url).rstrip("/")}
    assert (await browser.http.post("/v1/runs", headers=remote)).status_code == 403
    assert (await browser.http.post("/v1/logout")).status_code == 204
    assert await browser.who() == 401


async def test_the_cookies_of_a_sign_in_cannot_be_read_and_come_back_from_another_site(
    browser: Browser,
) -> None:
    response = await browser.http.get("/v1/oidc/login")
    flow = response.headers["set-cookie"].lower()
    assert "httponly" in flow
    assert "samesite=lax" in flow
    await browser.grants(response.headers["location"], "alice")
    response = await browser.http.get(browser.answered)
    [token] = [each for each in response.headers.get_list("set-cookie") if TOKEN in each]
    assert "httponly" in token.lower()
    assert response.headers["location"] == "/"


async def test_scopes_come_from_the_claims(browser: Browser) -> None:
    await browser.signs_in("dora")
    who = await browser.who()
    assert isinstance(who, dict)
    assert who["scopes"] == ["decide", "read"]
    assert who["tenant"] is None


async def test_a_group_of_a_provider_gives_scopes_and_a_person_without_one_may_do_nothing(
    provider: str,
) -> None:
    given = {"roles_claim": "groups", "role_scopes": {"/staff/leads": ["read", "decide"]}}
    async with AsyncExitStack() as stack:
        guarded = Guarded(**settings(provider, **given))
        await guarded.start(stack)
        async with Browser(guarded) as browser:
            await browser.signs_in("bob", groups=["/staff/leads", "administer"])
            who = await browser.who()
            assert isinstance(who, dict)
            assert who["scopes"] == ["decide", "read"]
            assert who["roles"] == ["/staff/leads", "administer"]
            await browser.signs_in("bob", groups={"/staff/leads": True})
            who = await browser.who()
            assert isinstance(who, dict)
            assert who["scopes"] == []
            assert (await browser.http.get("/v1/tokens")).status_code == 403


async def test_two_people_sign_in_at_a_time_and_each_is_who_they_are(guarded: Guarded) -> None:
    async with Browser(guarded) as one, Browser(guarded) as other:
        first, second = await one.begins("/one"), await other.begins("/other")
        await other.grants(second, "bob")
        await one.grants(first, "alice")
        assert await one.comes_back() == "/one"
        assert await other.comes_back() == "/other"
        found = [await each.who() for each in (one, other)]
        assert [each["user_id"] for each in found if isinstance(each, dict)] == ["alice", "bob"]


# attacks ----------------------------------------------------------------------------------------


async def test_an_answer_for_another_browser_signs_nobody_in(guarded: Guarded) -> None:
    async with Browser(guarded) as attacker, Browser(guarded) as victim:
        await attacker.grants(await attacker.begins(), "bob")
        victim.answered = attacker.answered
        assert await victim.comes_back() == refused("not_begun", "/")
        assert await victim.who() == 401
        # Nor while the victim signs in, which goes on.
        url = await victim.begins()
        assert await victim.comes_back() == refused("not_begun", "/")
        # Nor in place of the person who has signed in.
        await victim.grants(url, "alice")
        assert await victim.comes_back() == BACK
        victim.answered = attacker.answered
        assert await victim.comes_back() == refused("not_begun", "/")
        who = await victim.who()
        assert isinstance(who, dict)
        assert who["user_id"] == "alice"


async def test_an_answer_counts_once(browser: Browser) -> None:
    url = await browser.begins()
    flow = browser.http.cookies[FLOW]
    await browser.grants(url, "alice")
    assert await browser.comes_back() == BACK
    assert await browser.comes_back() == refused("not_begun", "/")
    # Nor with the cookie of the sign-in: the provider takes a code once.
    browser.http.cookies.clear()
    browser.http.cookies.set(FLOW, flow)
    assert await browser.comes_back() == refused("not_accepted")
    assert await browser.who() == 401


async def test_a_code_of_another_sign_in_is_refused(guarded: Guarded) -> None:
    async with Browser(guarded) as attacker, Browser(guarded) as victim:
        await victim.grants(await victim.begins(), "alice")
        stolen = parse_qs(urlsplit(victim.answered).query)["code"][0]
        await attacker.grants(await attacker.begins(), "bob")
        # The provider knows that the code belongs to another code challenge (PKCE).
        assert await attacker.comes_back(code=stolen) == refused("not_accepted")
        assert await attacker.who() == 401


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"aud": ["another-client"]},
        {"aud": [CLIENT, "another-client"], "azp": "another-client"},
        {"iss": "https://issuer.example"},
        {"exp": 1},
        {"sub": "anonymous"},
        {"sub": "service-token:x"},
        {"org": 7},
    ],
    ids=json.dumps,
)
async def test_a_wrong_id_token_signs_nobody_in(
    browser: Browser, claims: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert await browser.signs_in("alice", **claims) == refused("not_accepted")
    assert "the ID token" in caplog.text  # so it was not refused for something else
    assert await browser.who() == 401


@pytest.mark.parametrize(
    "changes",
    [{"state": "x"}, {"state": ""}, {"state": "é"}],
    ids=["other", "empty", "not ASCII"],
)
async def test_a_wrong_state_signs_nobody_in(browser: Browser, changes: dict[str, str]) -> None:
    await browser.grants(await browser.begins(), "alice")
    assert await browser.comes_back(**changes) == refused("not_begun", "/")
    assert await browser.who() == 401


async def test_an_answer_of_another_issuer_is_refused(browser: Browser) -> None:
    await browser.grants(await browser.begins(), "alice")
    assert await browser.comes_back(iss="https://issuer.example") == refused("not_accepted")


@pytest.mark.parametrize("flow", ["x", "x.y", ".", "e30=.", "\u00e9"], ids=ascii)
async def test_a_cookie_that_penstock_has_not_sealed_begins_nothing(
    browser: Browser, flow: str
) -> None:
    await browser.grants(await browser.begins(), "alice")
    headers = {b"cookie": f"{FLOW}={flow}".encode()}
    browser.http.cookies.clear()
    response = await browser.http.get(browser.answered, headers=headers)
    assert response.headers["location"] == refused("not_begun", "/")


async def test_a_sign_in_has_ten_minutes(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    await browser.grants(await browser.begins(), "alice")
    later_s = time.time() + FLOW_S + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert await browser.comes_back() == refused("not_begun", "/")


@pytest.mark.parametrize(
    "place",
    [
        "https://attacker.example/",
        "//attacker.example/",
        "/\\attacker.example/",
        "/\t/attacker.example/",
        "\\\\attacker.example",
        "javascript:alert(1)",
        "/x\r\nset-cookie: a=b",
        "/#//attacker.example",
        "",
        "x",
        f"/{'x' * 2000}",
    ],
    ids=ascii,
)
async def test_a_sign_in_leads_to_no_foreign_page(browser: Browser, place: str) -> None:
    assert await browser.signs_in("alice", place) == "/"


# failures ---------------------------------------------------------------------------------------


async def test_a_person_whom_the_provider_refuses_is_told_so(browser: Browser) -> None:
    assert await browser.signs_in("nobody") == refused("denied")


async def test_a_token_that_no_cookie_can_have_is_told(browser: Browser) -> None:
    many = [f"group-{number}" for number in range(500)]
    assert await browser.signs_in("alice", groups=many) == refused("too_large")


async def test_a_provider_that_does_not_answer_is_told() -> None:
    async with AsyncExitStack() as stack:
        guarded = Guarded(**settings("http://127.0.0.1:9"))
        await guarded.start(stack)
        response = await guarded.http.get("/v1/oidc/login", params={"next": "/console/inbox"})
        assert response.status_code == 303
        assert response.headers["location"] == refused("unavailable", "/console/inbox")
        assert (await guarded.http.get("/v1/login")).json()["oidc"]["end"] is None


async def test_strangers_who_sign_in_cannot_flood_a_provider_that_is_unwell() -> None:
    provider = JwksServer("/.well-known/openid-configuration")
    provider.answering.clear()
    async with AsyncExitStack() as stack:
        await provider.start()
        stack.push_async_callback(provider.stop)
        issuer = provider.url.removesuffix("/.well-known/openid-configuration")
        guarded = Guarded(**settings(issuer, jwks_timeout_s=0.2))
        await guarded.start(stack)
        begun = [guarded.http.get("/v1/oidc/login") for _ in range(5)]
        found = await asyncio.gather(*begun, guarded.http.get("/v1/login"))
        assert {each.headers["location"] for each in found[:5]} == {refused("unavailable", "/")}
        assert found[5].json()["oidc"]["end"] is None
        assert provider.reads == 1


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token"])
async def test_a_provider_whose_answer_never_ends_keeps_nobody_waiting(path: str) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        config = json.dumps(configuration(issuer)).encode()
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
        writer.write(head if asked == path else head + config)
        while asked == path and not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AsyncExitStack() as stack:
        guarded = Guarded(**settings(issuer, jwks_timeout_s=0.3))
        await guarded.start(stack)
        async with asyncio.timeout(10), Browser(guarded) as browser:
            begun = await browser.http.get("/v1/oidc/login")
            if path == "/token":
                [state] = parse_qs(urlsplit(begun.headers["location"]).query)["state"]
                begun = await browser.http.get(f"/v1/oidc/callback?state={state}&code=c")
        assert begun.headers["location"] == refused("unavailable", "/")


def configuration(issuer: str, /, **changes: Any) -> dict[str, Any]:
    names = {"authorization_endpoint": "auth", "token_endpoint": "token", "jwks_uri": "keys"}
    return {"issuer": issuer} | {name: f"{issuer}/{at}" for name, at in names.items()} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://other.example"},
        {"issuer": "https://issuer.example/realms/b/"},
        {"issuer": None},
        {"jwks_uri": ["https://issuer.example/keys"]},
        {"token_endpoint": "file:///etc/passwd"},
        {"authorization_endpoint": "https://issuer.example/\r\nset-cookie: a=b"},
        {"authorization_endpoint": "https://issuer.example/\u00e9\u4e16"},
        {"end_session_endpoint": "javascript:alert(1)"},
        {"code_challenge_methods_supported": ["plain"]},
        {"code_challenge_methods_supported": 256},
        {"token_endpoint_auth_methods_supported": {"client_secret_basic": 1}},
    ],
    ids=json.dumps,
)
def test_a_configuration_that_is_wrong_or_of_another_is_refused(changes: dict[str, Any]) -> None:
    issuer = "https://issuer.example/realms/b"
    assert oidc.provider_of(json.dumps(configuration(issuer)).encode(), issuer).takes_basic
    body = json.dumps(configuration(issuer, **changes)).encode()
    with pytest.raises(JwksFailure):
        oidc.provider_of(body, issuer)


async def test_how_to_sign_in_is_public(browser: Browser, provider: str) -> None:
    told = (await browser.http.get("/v1/login")).json()["oidc"]
    assert told["issuer"] == provider
    assert told["begin"] == "/v1/oidc/login"
    end = urlsplit(told["end"])
    assert f"{end.scheme}://{end.netloc}{end.path}" == f"{provider}/end"
    assert parse_qs(end.query)["post_logout_redirect_uri"] == ["http://127.0.0.1:1/"]


async def test_without_a_provider_there_is_no_such_sign_in() -> None:
    async with AsyncExitStack() as stack:
        guarded = Guarded(jwt_secret="x" * 32)
        await guarded.start(stack)
        assert (await guarded.http.get("/v1/login")).json() == {"oidc": None}
        for path in ("/v1/oidc/login", "/v1/oidc/callback?state=x&code=y"):
            assert (await guarded.http.get(path)).status_code == 404


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"oidc_client_id": None}, "PENSTOCK_OIDC_CLIENT_ID"),
        ({"jwt_secret": "x" * 32}, "PENSTOCK_AUTH_JWT_SECRET"),
        ({"issuer": "https://other.example"}, "PENSTOCK_AUTH_ISSUER"),
        ({"oidc_scopes": "profile"}, "PENSTOCK_OIDC_SCOPES"),
        ({"oidc_issuer": "no url"}, "oidc_issuer"),
        ({"public_url": "penstock.example"}, "public_url"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        AuthSettings(**settings("https://issuer.example", **changes))


def test_the_edge_must_know_where_people_come_back_to() -> None:
    auth = AuthSettings(**settings("https://issuer.example", public_url=None))
    with pytest.raises(ValueError, match="PENSTOCK_PUBLIC_URL"):
        EdgeSettings(auth=auth)
