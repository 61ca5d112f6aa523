"""One user's connections, streams and requests are limited, without effect on other users."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.settings import AuthSettings
from penstock.telemetry import LIMITED
from penstock.web.auth.identity import ANONYMOUS, Identity
from penstock.web.auth.limits import MAX_BUCKETS, OpenCounts, Requests
from penstock.web.problems import Problem
from support.fakes.guarded_server import SURFACES
from support.fakes.issuer import SECRET, token

from .conftest import MakeGuarded

ALICE, BOB = (Identity(name, frozenset(), "bearer") for name in ("alice", "bob"))


class Clock:
    """A clock that does not move until the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def admitted(requests: Requests, who: Identity, times: int) -> int:
    """Return how many of so many simultaneous requests are admitted."""

    def tries() -> Iterator[bool]:
        for _ in range(times):
            try:
                requests.take(who)
            except Problem:
                yield False
            else:
                yield True

    return sum(tries())


def test_a_user_has_a_burst_and_then_a_rate() -> None:
    clock = Clock()
    requests = Requests(10, 20, clock)
    assert admitted(requests, ALICE, 50) == 20
    assert admitted(requests, BOB, 5) == 5
    clock.now += 0.5
    assert admitted(requests, ALICE, 50) == 5
    clock.now += 3600
    assert admitted(requests, ALICE, 50) == 20


def test_a_refusal_says_when_to_try_again_and_then_it_is_true() -> None:
    clock = Clock()
    requests = Requests(0.25, 1, clock)
    requests.take(ALICE)
    with pytest.raises(Problem) as refused:
        requests.take(ALICE)
    assert refused.value.headers == {"retry-after": "4"}
    clock.now += 4
    requests.take(ALICE)


def test_a_rate_of_0_is_no_limit_and_anonymous_is_nobody_in_particular() -> None:
    assert admitted(Requests(0, 1), ALICE, 1000) == 1000
    assert admitted(Requests(1, 1), ANONYMOUS, 1000) == 1000


def test_all_users_of_a_tenant_together_have_a_multiple_of_one_users_limits() -> None:
    def of(tenant: str, number: int) -> Identity:
        return Identity(f"{tenant}-{number}", frozenset(), "bearer", tenant=tenant)

    clock = Clock()
    requests = Requests(10, 20, clock, tenant_limits=3)
    streams = OpenCounts("streams", 2, "streams open at a time", tenant_limits=3)
    assert sum(admitted(requests, of("acme", number), 20) for number in range(9)) == 60
    assert admitted(requests, of("umbrella", 0), 50) == 20
    clock.now += 1
    assert sum(admitted(requests, of("acme", number), 20) for number in range(9)) == 30
    back = [streams.take(of("acme", number)) for number in range(6)]
    with pytest.raises(Problem, match="this tenant has 6 streams open at a time already"):
        streams.take(of("acme", 7))
    streams.take(of("umbrella", 0))
    back[0]()
    streams.take(of("acme", 7))


@given(
    st.floats(0.1, 1000),
    st.integers(1, 100),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 30)), max_size=30),
)
def test_in_no_time_more_than_the_burst_and_the_rate_come_in(
    rate: float, burst: int, arrivals: list[tuple[float, int]]
) -> None:
    clock = Clock()
    requests = Requests(rate, burst, clock)
    begun, total = clock.now, 0
    for pause_s, count in arrivals:
        clock.now += pause_s
        total += admitted(requests, ALICE, count)
        assert total <= burst + rate * (clock.now - begun) + 1e-6


def test_users_who_have_gone_are_forgotten() -> None:
    clock = Clock()
    requests = Requests(1000, 10, clock)
    for number in range(3 * MAX_BUCKETS):
        clock.now += 0.01
        requests.take(Identity(f"user {number}", frozenset(), "bearer"))
    assert len(requests) <= MAX_BUCKETS


def test_what_is_given_back_can_be_taken_again() -> None:
    held = OpenCounts("streams", 2, "streams")
    give_back: list[Callable[[], None]] = [held.take(ALICE), held.take(ALICE)]
    before = LIMITED.labels("streams")._value.get()
    with pytest.raises(Problem):
        held.take(ALICE)
    assert LIMITED.labels("streams")._value.get() == before + 1
    held.take(BOB)
    give_back[0]()
    held.take(ALICE)


def test_0_streams_or_connections_is_any_number() -> None:
    held = OpenCounts("streams", 0, "streams")
    for _ in range(1000):
        held.take(ALICE)
    settings = AuthSettings(max_connections_per_user=0, max_streams_per_user=0)
    assert settings.max_requests_per_s == 100
    assert settings.max_requests_burst == 500


@pytest.mark.parametrize("path", SURFACES)
async def test_every_surface_says_in_its_own_shape_that_there_were_too_many_requests(
    make_guarded: MakeGuarded, path: str
) -> None:
    guarded = await make_guarded(jwt_secret=SECRET, max_requests_per_s=0.01, max_requests_burst=1)
    assert (await guarded.as_bearer(token(), path)).status_code == 200
    answer = await guarded.as_bearer(token(), path)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 100
    told = answer.json()
    words = told.get("detail") or told.get("message")
    assert "requests a second of this user" in words
    if SURFACES[path].name == "problem":
        assert told["limit"] == "requests"
    if SURFACES[path].name == "executions":
        assert told["code"] == "TOO_MANY_REQUESTS"
    with contextlib.suppress(KeyError):
        assert told["data"] is None
    assert (await guarded.as_bearer(token(sub="bob"), path)).status_code == 200
