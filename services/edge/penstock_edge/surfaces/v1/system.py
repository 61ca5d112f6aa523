"""Serves what can be seen of the deployment: /v1/health, and for operators /v1/system and
/v1/dead-letters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import asdict, replace
from typing import Any, Final, get_args

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus import BusError
from penstock.bus.admin.replay import ReplayReply
from penstock.bus.records.runs import ENDED, RunStatus
from penstock.bus.state import deadletters
from penstock.bus.streams import raw_of
from penstock.bus.subjects import partition_of, replay_letter, shard_of
from penstock.doctor.checks import Finding, run_checks
from penstock.doctor.facts import Facts, PartitionFact
from penstock.doctor.nats_facts import in_nats, services_in_nats
from penstock.settings.keep import parse_keep
from penstock.web.answers import cursor_of, cursor_parts
from penstock.web.auth import identity_of
from penstock.web.bodies import ignore_body
from penstock.web.operation import (
    FLAG,
    NULLABLE,
    OBJECT,
    TEXT,
    Operation,
    Parameter,
    a_list,
    an_object,
    in_path,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.query import number
from penstock_edge.surfaces.surface import Handlers

REPLAY_S: Final = 5.0
KNOWN_FOR_S: Final = 5.0  # seconds for which the edge uses what it has found of the services
OPEN: Final = tuple(status for status in get_args(RunStatus) if status not in ENDED)
MOST_OPEN: Final = 100  # of so many open runs of the caller, the partitions are looked at
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
MAX_DIGITS: Final = 19
# What an edge cannot look at: files, other services' probes and passwords, the chart.
IN_A_TERMINAL: Final = "run `penstock doctor` in a terminal (docs/operate/doctor.md)"
_FINDING: Final = an_object(
    check=TEXT, verdict=one_of(("ok", "wrong", "not_checked")), text=TEXT, to_do=TEXT
)
_NUMBER: Final = in_path("number", "The number of the dead letter")


class Health(Handlers):
    """Has the handler of /v1/health, which asks NATS at most once within `KNOWN_FOR_S`."""

    def __init__(self, edge: Edge) -> None:
        super().__init__(edge)
        self._known_at_s = 0.0
        self._known: asyncio.Task[tuple[dict[str, bool], list[PartitionFact]]] | None = None

    @serves(
        Operation(
            tag="system",
            method="GET",
            path="/v1/health",
            summary="Whether the services work, and how late the caller's runs are",
            description="`services` has each service that takes work from NATS, and whether a "
            "process of it does. `frames_behind` is how many source frames wait to become events, "
            "in that partition of the caller's open runs which has the most.",
            answers={
                200: json(
                    "The services",
                    an_object(
                        services=a_list(an_object(name=TEXT, answers=FLAG)),
                        frames_behind={"type": "integer"},
                    ),
                )
            },
            scopes=("read",),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        who, edge = identity_of(request), self._edge
        services, partitions = await self._facts()
        async with edge.turns.of(who.tenant_user):
            runs, _ = await edge.run_list.page(
                who.owners, who.may_see_runs_of, {"status": OPEN}, None, MOST_OPEN
            )
        counts = Counter(each.stream for each in partitions)
        places = set()
        for run in runs:
            stream = raw_of(shard_of(run["run_id"]))
            places.add((stream, partition_of(run["run_id"], max(1, counts[stream]))))
        behind = [each.behind for each in partitions if (each.stream, each.number) in places]
        found = [{"name": name, "answers": answers} for name, answers in services.items()]
        return json_response({"services": found, "frames_behind": max(behind, default=0)})

    async def _facts(self) -> tuple[dict[str, bool], list[PartitionFact]]:
        now_s = time.monotonic()
        known = self._known
        is_old = now_s - self._known_at_s > KNOWN_FOR_S
        if known is None or (known.done() and (is_old or known.exception() is not None)):
            known = self._known = asyncio.create_task(services_in_nats(self._edge.bus))
            self._known_at_s = now_s
        # Other callers may wait for the same task when this caller's client leaves.
        return await asyncio.shield(known)

    async def close(self) -> None:
        if self._known is not None:
            self._known.cancel()
            await asyncio.gather(self._known, return_exceptions=True)


class System(Handlers):
    """Has the handlers of /v1/system and /v1/dead-letters."""

    @serves(
        Operation(
            tag="system",
            method="GET",
            path="/v1/system",
            summary="What `penstock doctor` says, as far as an edge can see it",
            description="`findings` has the verdict of each check and what to do. `not_checked` is "
            "what only a terminal can look at, such as passwords and the chart. `streams` has "
            "their sizes in bytes (`max_bytes` -1: no limit), `consumers` the messages that wait "
            "for each service, `partitions` how many frames of RAW the events are behind.",
            answers={
                200: json(
                    "The findings, and the facts behind them",
                    an_object(
                        findings=a_list(_FINDING),
                        streams=a_list(OBJECT),
                        consumers=a_list(OBJECT),
                        partitions=a_list(OBJECT),
                        dead_letters={"type": "integer"},
                    ),
                )
            },
            scopes=("administer",),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        async with self._edge.turns.of(identity_of(request).tenant_user):
            facts = await in_nats(self._edge.bus, parse_keep(self._edge.settings.keep))
        return json_response(
            {
                "findings": [asdict(each) for each in _findings(facts)],
                "streams": [
                    {"name": each.name, "bytes": each.bytes, "max_bytes": each.max_bytes}
                    for each in facts.streams
                ],
                "consumers": [asdict(each) for each in facts.consumers],
                "partitions": [asdict(each) for each in facts.partitions],
                "dead_letters": facts.dead_letters,
            }
        )

    @serves(
        Operation(
            tag="system",
            method="GET",
            path="/v1/dead-letters",
            summary="The messages that no service could process, the newest last",
            description="Without payloads, which may contain secrets: `penstock deadletters show` "
            "has them. `state` is `waiting`, `replaying` (a replay was interrupted: replay again) "
            "or `replayed`.",
            answers={200: json("A page", an_object(dead_letters=a_list(OBJECT), next=NULLABLE))},
            scopes=("administer",),
            parameters=(
                by.limit(MAX_LIMIT),
                Parameter("after", "`next` of the page before"),
            ),
        )
    )
    async def letters(self, request: Request) -> ASGIApp:
        query = request.query_params
        limit = number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        [after] = cursor_parts(query["after"], int) if "after" in query else [0]
        found: list[dict[str, Any]] = []
        following = None
        async with self._edge.turns.of(identity_of(request).tenant_user):
            async for letter in deadletters.letters(self._edge.bus, after=max(0, after)):
                if len(found) == limit:
                    following = cursor_of(found[-1]["number"])
                    break
                found.append(letter.summary())
        return json_response({"dead_letters": found, "next": following})

    @serves(
        Operation(
            tag="system",
            method="POST",
            path="/v1/dead-letters/{number}/replay",
            summary="Publish the message of a dead letter again; a repeat changes nothing",
            description="409 says why a replay would do harm or have no effect.",
            answers={200: json("What was done", ReplayReply)},
            scopes=("administer",),
            parameters=(_NUMBER,),
            refusals=(404, 409),
        )
    )
    async def replay(self, request: Request) -> ASGIApp:
        """Ask the normalizer, which may publish commands of all kinds."""
        await ignore_body(request)
        wanted = request.path_params["number"]
        is_number = wanted.isascii() and wanted.isdecimal() and len(wanted) < MAX_DIGITS
        if not is_number or await deadletters.find(self._edge.bus, int(wanted)) is None:
            raise Problem(404, f"there is no dead letter {wanted[:MAX_DIGITS]}")
        try:
            answer = await self._edge.bus.request(replay_letter(wanted), b"", REPLAY_S)
        except BusError as error:
            raise Problem(503, f"no normalizer has answered; try again: {error}") from error
        reply = ReplayReply.model_validate_json(answer.data)
        if reply.status != 200:
            raise Problem(reply.status, reply.detail)
        return json_response(reply.model_dump(mode="json"))


def _findings(facts: Facts) -> list[Finding]:
    return [
        replace(each, to_do=IN_A_TERMINAL) if each.verdict == "not_checked" else each
        for each in run_checks(facts)
    ]
