"""The health of the bus names each reason for not being ready and logs its begin and its end."""

from __future__ import annotations

import logging

import pytest

from penstock.bus.connection.health import (
    DISCONNECTED_S,
    FORGOTTEN_S,
    LOG_AGAIN_S,
    Health,
    stream_of,
    subject_family,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


def test_what_is_full_is_a_reason_until_it_takes_something(health: Health) -> None:
    assert health.reasons == []
    health.refused("full", "RAW", "maximum bytes exceeded")
    (reason,) = health.reasons
    assert reason.startswith("RAW takes no more messages (maximum bytes exceeded)")
    assert "nats stream edit RAW" in reason
    health.worked("EVENTS")
    assert health.reasons
    health.worked("RAW")
    assert health.reasons == []


def test_an_election_is_no_trouble(health: Health, clock: Clock) -> None:
    health.refused("away", "RAW", "no stream leader answered")
    assert health.reasons == []
    clock.now += DISCONNECTED_S - 1
    health.refused("away", "RAW", "no stream leader answered")
    assert health.reasons == []
    clock.now += 1
    (reason,) = health.reasons
    assert reason.startswith("RAW has not answered for 10 s")


@pytest.mark.parametrize("kind", ["full", "denied"])
def test_a_refusal_that_was_not_tried_again_is_forgotten(
    health: Health, clock: Clock, kind: str
) -> None:
    """A service that is not ready gets no work.

    So it would not try again, and a reason that needs a try to end would never end.
    """
    health.refused(kind, "COMMANDS")  # type: ignore[arg-type]  # the parametrization gives a `str`
    clock.now += FORGOTTEN_S - 1
    assert health.reasons
    clock.now += 2
    assert health.reasons == []


@pytest.mark.parametrize("kind", ["unheard", "lost"])
def test_a_certain_finding_is_not_replaced(health: Health, clock: Clock, kind: str) -> None:
    health.refused(kind, "live", "why")  # type: ignore[arg-type]  # the parametrization gives a `str`
    clock.now += 3600
    assert len(health.reasons) == 1


def test_another_connection_may_have_other_permissions(health: Health) -> None:
    for kind in ("denied", "unheard", "full"):
        health.refused(kind, "RAW")
    health.begin_anew()
    (reason,) = health.reasons
    assert "takes no more" in reason


def test_a_refusal_is_logged_at_its_beginning_periodically_and_at_its_end(
    health: Health, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(int(4 * (2 * LOG_AGAIN_S + 1))):  # a writer that retries every 0.25 s
        health.refused("full", "RAW", "no space")
        clock.now += 0.25
    assert caplog.text.count("RAW takes no more messages") == 3
    health.worked("RAW")
    assert "RAW works again, after 61 s" in caplog.text


def test_every_refusal_is_counted(clock: Clock) -> None:
    counted: list[tuple[str, str]] = []
    health = Health(clock, lambda kind, where: counted.append((kind, where)))
    for _ in range(3):
        health.refused("denied", "RAW")
    assert counted == [("denied", "RAW")] * 3


@pytest.mark.parametrize(
    ("subject", "stream"),
    [
        ("raw.r.upstream", "RAW"),
        ("command.connector.start.r", "COMMANDS"),
        ("llm.stream.r", "EVENTS"),
        ("schedule.approvals.a", "SCHEDULES"),
        ("due.approvals.a", "SCHEDULES"),
        ("deadletter.edge.r", "DEADLETTERS"),
        ("$KV.runs.r", "KV_runs"),
        ("$O.payloads.C.x", "OBJ_payloads"),
        ("control.r", "control"),
        ("$js.api.stream.msg.get.raw", "$JS.API.STREAM.MSG.GET"),
    ],
)
def test_a_subject_tells_which_stream_it_is_of(subject: str, stream: str) -> None:
    assert stream_of(subject) == stream


def test_what_differs_from_run_to_run_is_left_out() -> None:
    assert subject_family("live.*.*.r1") == subject_family("live.*.*.r2") == "live"
