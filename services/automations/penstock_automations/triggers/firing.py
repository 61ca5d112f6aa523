"""Decides when a schedule fires its rule, and makes the job of a firing. Pure.

A rule has at most one scheduled message. The message carries a `Firing`, which is the next time of
the rule's schedule. If the rule has changed meanwhile, the fields of the `Firing` differ from the
rule, and the message fires nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self
from zoneinfo import ZoneInfo

import orjson

from penstock.bus import subjects
from penstock.documents.cron import Cron, rfc3339
from penstock_automations.jobs.job import Job, TriggerKind, TriggerSource
from penstock_automations.matching.rule_matches import Match
from penstock_automations.rules.records import CompiledRule, event_of

SERVICE: Final = "automations-schedules"  # the service's name in subjects in SCHEDULES
ON_TIME_S: Final = 60.0  # seconds; a firing that is later counts as missed or caught up
EARLY_S: Final = 5.0  # seconds; an earlier firing waits again, because NATS's clock was set back

Outcome = Literal["fired", "caught_up", "missed", "stale", "early"]


@dataclass(frozen=True, slots=True)
class Firing:
    """The next time of a rule's schedule, in Unix seconds, with the schedule that the rule had."""

    rule: str
    uid: str
    cron: str
    timezone: str
    at: float

    @property
    def subject(self) -> str:
        """The subject of the rule's scheduled message. A later message replaces the earlier one."""
        return schedule_subject(self.rule)

    @property
    def due_subject(self) -> str:
        return subjects.due(SERVICE, f"rule-{self.rule}")

    def is_of(self, rule: CompiledRule) -> bool:
        record = rule.record
        return record.times == Cron(self.cron, self.timezone) and record.uid == self.uid

    def dump(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Return the firing that `dump` wrote, without unknown fields. Raises ValueError."""
        try:
            fields: dict[str, Any] = orjson.loads(payload)
            firing = cls(**{name: fields[name] for name in cls.__slots__})
            return cls(**{**asdict(firing), "at": float(firing.at)})
        except (TypeError, LookupError, ValueError) as error:
            raise ValueError(f"not a firing of a schedule: {error!r}") from error


@dataclass(frozen=True, slots=True)
class DueFiring:
    """The decision on a firing that is due. `at` is the time that is fired or was missed."""

    outcome: Outcome
    at: float

    @property
    def is_fired(self) -> bool:
        return self.outcome in ("fired", "caught_up")


def schedule_subject(rule_id: str) -> str:
    return subjects.schedule(SERVICE, f"rule-{rule_id}")


def next_firing(
    rule: CompiledRule, pending: Firing | None, now: float, handled: float | None = None
) -> Firing | None:
    """Return the next firing to schedule; None if the rule has no further times.

    `pending` is the firing that is scheduled now. If the time of `pending` has come, the result is
    `pending`, because the server is about to publish it. `handled` is the time that the caller has
    just fired. If both are None, the rule may have missed times. Then the result is the latest
    missed time that may still be fired; if there is none, the result is the next time.
    """
    times = rule.record.times
    if times is None:
        return None
    if (
        pending is not None
        and pending.is_of(rule)
        and max(rule.record.since, handled or 0.0) < pending.at <= now
    ):
        return pending
    at = None
    if pending is None and handled is None:
        at = times.latest(_earliest(rule, now), now)
    if at is None:
        at = times.next(max(now, handled or 0.0))
    if at is None:
        return None
    return Firing(rule.id, rule.record.uid, times.expression, times.timezone, at)


def due(firing: Firing, rule: CompiledRule | None, now: float) -> DueFiring:
    """Decide on a firing that the server has published. The outcomes are:

    - "stale": the rule was deleted, paused or changed, or came into force after the time.
    - "early": the time has not come, since NATS's clock was set back.
    - "missed": the time is too long ago.
    - "fired": the rule is fired in time.
    - "caught_up": times were missed; the rule is fired once, for the latest one.
    """
    if rule is None or not firing.is_of(rule) or firing.at <= rule.record.since:
        return DueFiring("stale", firing.at)
    if firing.at > now + EARLY_S:
        return DueFiring("early", firing.at)
    latest = Cron(firing.cron, firing.timezone).latest(_earliest(rule, now), now)
    at = max(firing.at, latest or 0.0)
    if at == firing.at and now - at <= ON_TIME_S:
        return DueFiring("fired", at)
    return DueFiring("caught_up" if latest is not None else "missed", at)


def body_of_firing(times: Cron, at: float) -> dict[str, Any]:
    """Return the JSON of a firing, in the form of an event. Every process makes the same JSON."""
    moment = datetime.fromtimestamp(at, UTC)
    local = moment.astimezone(ZoneInfo(times.timezone))
    return {
        "timestamp": rfc3339(at),
        "event": {"category": "schedule", "action": "fired"},
        "data": {
            "scheduled_at": rfc3339(at),
            "local_time": local.isoformat(timespec="seconds"),
            "cron": times.expression,
            "timezone": times.timezone,
        },
    }


def id_of_time(at: float) -> str:
    """Return the trigger's id for a time. All processes make the same id, so a time has one job."""
    return f"schedule-{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}"


def job_of(
    match: Match, kind: TriggerKind, trigger_id: str, *, body: dict[str, Any], depth: int = 0
) -> Job:
    """Return the job of a trigger whose rule matches. If the condition could not be evaluated, the
    job records this failure and has no other effect."""
    record = match.rule.record
    return Job(
        rule=match.rule.id,
        version=record.version,
        uid=record.uid,
        type=event_of(body)["type"],
        source=TriggerSource(kind, trigger_id, body),
        depth=depth,
        failure=match.failure,
        dotted=False,
    )


def _earliest(rule: CompiledRule, now: float) -> float:
    """Return the moment, in Unix seconds, after which a time of the rule may still be fired."""
    schedule = rule.record.rule.schedule
    catch_up_s = schedule.catch_up_s if schedule is not None else 0.0
    return max(rule.record.since, now - catch_up_s)
