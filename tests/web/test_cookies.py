"""The cookie replaces the bearer header; a CSRF token and the origin keep other pages out."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.cookies import Morsel, SimpleCookie
from typing import Any

import httpx
import pytest

from support.fakes.guarded_server import REMOTE, Guarded, bearer
from support.fakes.issuer import SECRET, token

MakeGuarded = Callable[..., Any]

# The tests are parametrized by these names, since a token differs in every process and a test's
# name must not.
TOKENS = {
    "good": token(),
    "foreign": token(SECRET + "x"),
    "expired": token(exp=1),
    "no token": "x",
    "empty": "",
}
CREDENTIAL, CSRF = "__Host-penstock_token", "__Host-penstock_csrf"


def cookies_of(response: httpx.Response) -> dict[str, Morsel[str]]:
    found: dict[str, Morsel[str]] = {}
    for header in response.headers.get_list("set-cookie"):
        found |= SimpleCookie(header)
    return found


class Browser:
    """A page on another machine than the server, with the cookie of one login."""

    def __init__(self, guarded: Guarded, jwt: str) -> None:
        self.guarded = guarded
        self.cookies = {CREDENTIAL: jwt}

    async def csrf(self) -> str:
        response = await self.request("GET", "/v1/csrf")
        assert response.status_code == 200
        csrf: str = response.json()["csrf_token"]
        assert cookies_of(response)[CSRF].value == csrf
        self.cookies[CSRF] = csrf
        return csrf

    async def request(
        self, method: str = "POST", path: str = "/v1/runs", **headers: str
    ) -> httpx.Response:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {"cookie": cookie, **REMOTE, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return await self.guarded.http.request(method, path, headers=sent)


@pytest.fixture
def browser(guarded: Guarded) -> Browser:
    return Browser(guarded, token(sub="alice"))


# login and logout ------------------------------------------------------------------------------


async def test_login_gives_a_cookie_that_no_script_can_read(guarded: Guarded) -> None:
    jwt = token(exp=int(time.time()) + 600)
    response = await guarded.http.post("/v1/login", headers=bearer(jwt))
    assert response.status_code == 200
    assert response.json()["user_id"] == "alice"
    assert jwt not in response.text
    cookie = cookies_of(response)[CREDENTIAL]
    assert cookie.value == jwt
    assert (cookie["httponly"], cookie["secure"]) == (True, True)
    assert (cookie["samesite"], cookie["path"], cookie["domain"]) == ("lax", "/", "")
    assert 590 <= int(cookie["max-age"]) <= 630


async def test_the_cookie_is_the_caller(browser: Browser) -> None:
    response = await browser.request("GET")
    assert (response.json()["user_id"], response.json()["kind"]) == ("alice", "cookie")


async def test_without_tls_the_cookie_is_not_secure_and_says_so_in_its_name(
    make_guarded: MakeGuarded,
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, cookie_secure=False, cookie_samesite="strict")
    response = await guarded.http.post("/v1/login", headers=bearer(token()))
    cookie = cookies_of(response)["penstock_token"]
    assert (cookie["secure"], cookie["samesite"]) == ("", "strict")


async def test_a_cookie_is_no_way_to_log_in(browser: Browser) -> None:
    csrf = await browser.csrf()
    assert (await browser.request("POST", "/v1/login", x_csrf_token=csrf)).status_code == 400


@pytest.mark.parametrize("kind", ["foreign", "expired", "no token"])
async def test_a_token_that_does_not_hold_is_no_way_to_log_in(guarded: Guarded, kind: str) -> None:
    response = await guarded.http.post("/v1/login", headers=bearer(TOKENS[kind]))
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


async def test_a_token_that_outlives_the_calendar_breaks_nothing(guarded: Guarded) -> None:
    response = await guarded.http.post("/v1/login", headers=bearer(token(exp=10**30)))
    assert response.status_code == 200
    assert response.json()["expires_at"].startswith("9999-12-31")


async def test_a_token_that_no_browser_would_keep_is_not_made_a_cookie(guarded: Guarded) -> None:
    response = await guarded.http.post("/v1/login", headers=bearer(token(padding="x" * 4000)))
    assert response.status_code == 422
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("kind", ["empty", "no token", "expired", "good"])
async def test_logout_takes_the_cookies_back_whether_they_hold_or_not(
    guarded: Guarded, kind: str
) -> None:
    response = await Browser(guarded, TOKENS[kind]).request("POST", "/v1/logout")
    assert response.status_code == 204
    cookies = cookies_of(response)
    assert set(cookies) == {CREDENTIAL, CSRF}
    assert all(cookie["max-age"] == "0" and cookie["secure"] for cookie in cookies.values())


async def test_another_page_cannot_log_anybody_out(browser: Browser) -> None:
    response = await browser.request("POST", "/v1/logout", origin="https://evil.example")
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("kind", ["expired", "foreign", "no token", "empty"])
async def test_a_cookie_that_does_not_hold_is_refused(guarded: Guarded, kind: str) -> None:
    assert (await Browser(guarded, TOKENS[kind]).request("GET")).status_code == 401


async def test_two_cookies_of_the_name_are_refused_for_one_is_somebody_elses(
    guarded: Guarded,
) -> None:
    cookie = f"{CREDENTIAL}={token()}; {CREDENTIAL}={token(sub='mallory')}"
    assert (await guarded.get(cookie=cookie)).status_code == 400


async def test_a_bearer_goes_before_the_cookie(browser: Browser) -> None:
    response = await browser.request("GET", authorization=f"Bearer {token(sub='bob')}")
    assert (response.json()["user_id"], response.json()["kind"]) == ("bob", "bearer")


async def test_a_bearer_that_does_not_hold_is_not_made_good_by_the_cookie(browser: Browser) -> None:
    assert (await browser.request("GET", authorization="Bearer x")).status_code == 401


# CSRF ------------------------------------------------------------------------------------------


async def test_a_safe_request_needs_no_csrf_token(browser: Browser) -> None:
    assert (await browser.request("GET")).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_an_unsafe_request_by_cookie_needs_one(browser: Browser, method: str) -> None:
    response = await browser.request(method)
    assert response.status_code == 403
    assert "X-CSRF-Token" in response.json()["detail"]


async def test_with_the_token_and_its_cookie_it_continues(browser: Browser) -> None:
    csrf = await browser.csrf()
    assert (await browser.request(x_csrf_token=csrf)).status_code == 200


async def test_the_header_alone_or_the_cookie_alone_does_not_do(browser: Browser) -> None:
    csrf = await browser.csrf()
    assert (await browser.request()).status_code == 403
    del browser.cookies[CSRF]
    assert (await browser.request(x_csrf_token=csrf)).status_code == 403


async def test_the_token_of_another_session_does_not_do(guarded: Guarded) -> None:
    """Mallory has a CSRF token of her own, and plants its cookie in Alice's browser."""
    mallory, alice = Browser(guarded, token(sub="mallory")), Browser(guarded, token(sub="alice"))
    csrf = await mallory.csrf()
    alice.cookies[CSRF] = csrf
    assert (await alice.request(x_csrf_token=csrf)).status_code == 403


async def test_a_token_from_before_the_last_login_does_not_do(guarded: Guarded) -> None:
    browser = Browser(guarded, token(jti="first"))
    csrf = await browser.csrf()
    browser.cookies[CREDENTIAL] = token(jti="second")
    assert (await browser.request(x_csrf_token=csrf)).status_code == 403


@pytest.mark.parametrize("made_up", ["x", ".", "a.b", "a." + "0" * 64, "", "é.é"])
async def test_an_invented_token_does_not_do(browser: Browser, made_up: str) -> None:
    """A plain double-submit check accepts any value that is both in cookie and header."""
    sent = made_up.encode().decode("latin-1")
    browser.cookies[CSRF] = sent
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    headers = {"cookie": cookie, "x-csrf-token": sent, **REMOTE}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    response = await browser.guarded.http.post("/v1/runs", headers=raw)
    assert response.status_code == 403


async def test_two_csrf_headers_do_not_do(browser: Browser) -> None:
    csrf = await browser.csrf()
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    headers = [("cookie", cookie), ("x-csrf-token", csrf), ("x-csrf-token", csrf), *REMOTE.items()]
    response = await browser.guarded.http.post("/v1/runs", headers=headers)
    assert response.status_code == 403


async def test_a_bearer_needs_none(guarded: Guarded) -> None:
    response = await guarded.http.post("/v1/runs", headers={**bearer(token()), **REMOTE})
    assert response.status_code == 200


async def test_a_peer_on_this_machine_needs_none(guarded: Guarded) -> None:
    response = await guarded.http.post("/v1/runs", headers={"cookie": f"{CREDENTIAL}={token()}"})
    assert response.status_code == 200


@pytest.mark.parametrize("wrong", [["x"], [""], ["x", "x"]], ids=["wrong", "empty", "two"])
async def test_a_wrong_token_from_this_machine_is_refused(
    guarded: Guarded, wrong: list[str]
) -> None:
    cookie = ("cookie", f"{CREDENTIAL}={token()}; {CSRF}=x")
    headers = [cookie, *(("x-csrf-token", each) for each in wrong)]
    response = await guarded.http.post("/v1/runs", headers=headers)
    assert response.status_code == 403
    assert "X-CSRF-Token" in response.json()["detail"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "localhost:8000"])
async def test_what_host_says_makes_nobody_local(browser: Browser, host: str) -> None:
    assert (await browser.request(host=host)).status_code == 403


@pytest.mark.parametrize(
    "header", [{"forwarded": "for=127.0.0.1"}, {"x-forwarded-for": "127.0.0.1"}, {"x-real-ip": ""}]
)
async def test_a_request_through_a_proxy_on_this_machine_is_not_local(
    guarded: Guarded, header: dict[str, str]
) -> None:
    sent = {"cookie": f"{CREDENTIAL}={token()}", **header}
    assert (await guarded.http.post("/v1/runs", headers=sent)).status_code == 403


async def test_replicas_of_one_secret_take_each_others_tokens(make_guarded: MakeGuarded) -> None:
    one, other = [await make_guarded(jwt_secret=SECRET) for _ in range(2)]
    stranger = await make_guarded(jwt_secret=SECRET, csrf_secret=SECRET[::-1])
    browser = Browser(one, token())
    csrf = await browser.csrf()
    browser.guarded = other
    assert (await browser.request(x_csrf_token=csrf)).status_code == 200
    browser.guarded = stranger
    assert (await browser.request(x_csrf_token=csrf)).status_code == 403


# the page's origin -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://penstock.example", 200),
        ("https://app.example", 200),
        ("https://evil.example", 403),
        ("https://app.example.evil.example", 403),
        ("http://app.example", 403),
        ("null", 403),
        ("", 403),
        ("http://[", 403),
        ("http://localhost", 403),
    ],
)
async def test_a_page_must_be_ours_or_listed(
    make_guarded: MakeGuarded, origin: str, status: int
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, cors_origins="https://app.example")
    browser = Browser(guarded, token())
    csrf = await browser.csrf()
    response = await browser.request(host="penstock.example", origin=origin, x_csrf_token=csrf)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://127.0.0.1:8000", 200),
        ("http://[::1]:8000", 200),
        ("http://localhost:3000", 403),
        ("http://localhost", 403),
        ("http://localhost:x", 403),
        ("http://evil.example:8000", 403),
        ("null", 403),
    ],
)
async def test_on_this_machine_only_its_own_pages_may_call(
    make_guarded: MakeGuarded, origin: str, status: int
) -> None:
    """Callers are not authenticated, so any page in the developer's browser could start runs."""
    guarded = await make_guarded()
    headers = {"origin": origin, "host": "localhost:8000"}
    response = await guarded.http.post("/v1/runs", headers=headers)
    assert response.status_code == status


async def test_a_port_that_is_left_out_is_the_one_of_the_scheme(make_guarded: MakeGuarded) -> None:
    guarded = await make_guarded()
    for origin, status in (("http://localhost", 200), ("http://localhost:80", 200)):
        headers = {"origin": origin, "host": "localhost"}
        assert (await guarded.http.post("/v1/runs", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-site"}, 403),  # another port of this host
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Firefox/60.0"}, 403),
        ({"user-agent": "curl/8.5.0"}, 200),
    ],
)
async def test_a_browser_must_say_which_page_sent_a_request(
    make_guarded: MakeGuarded, headers: dict[str, str], status: int
) -> None:
    guarded = await make_guarded()
    assert (await guarded.http.post("/v1/runs", headers=headers)).status_code == status


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
async def test_a_page_whose_name_was_made_to_point_here_may_not_call(
    make_guarded: MakeGuarded, origin: str
) -> None:
    """After DNS rebinding, Host is the page's own name, so the request counts as same-origin."""
    guarded = await make_guarded()
    headers = {"origin": origin, "host": origin.removeprefix("http://")}
    assert (await guarded.http.post("/v1/runs", headers=headers)).status_code == 421
