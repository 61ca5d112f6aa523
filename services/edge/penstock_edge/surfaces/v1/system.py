"""Serves what an operator sees of the deployment: /v1/system and /v1/dead-letters."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus import BusError
from penstock.bus.records import ReplayReply
from penstock.bus.state import deadletters
from penstock.bus.subjects import replay_letter
from penstock.doctor.checks import Finding, run_checks
from penstock.doctor.facts import Facts
from penstock.doctor.nats_facts import in_nats
from penstock.settings.keep import parse_keep
from penstock.web.answers import cursor_of, cursor_parts
from penstock.web.auth import identity_of
from penstock.web.bodies import ignore_body
from penstock.web.operation import (
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
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.query import number
from penstock_edge.surfaces.surface import Handlers

REPLAY_S: Final = 5.0
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
MAX_DIGITS: Final = 19
# What an edge cannot look at: files, other services' probes and passwords, the chart.
IN_A_TERMINAL: Final = "run `penstock doctor` in a terminal (docs/operate/doctor.md)"
_FINDING: Final = an_object(
    check=TEXT, verdict=one_of(("ok", "wrong", "not_checked")), text=TEXT, to_do=TEXT
)
_NUMBER: Final = in_path("number", "The number of the dead letter")


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
