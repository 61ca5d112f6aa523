"""Serves ADK's sessions and their artifacts, under /apps/{app}/users/{user}/sessions."""

from __future__ import annotations

import re
import uuid
from functools import partial
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.records.legs import SessionRecord
from penstock.runs.start import frames_refused
from penstock.web.auth import acting_user, identity_of, require
from penstock.web.bodies import ignore_body, read_body, require_json
from penstock.web.operation import OBJECT, TEXT, Parameter, a_list, in_path, json, serves
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.adk.operations import ADK, READING, UPSTREAM, operation
from penstock_edge.surfaces.adk.request import ChangeRequest, CreateRequest
from penstock_edge.surfaces.adk.servers import AdkServers, relayed
from penstock_edge.surfaces.adk.session_store import NamedSession, SessionStore
from penstock_edge.surfaces.agents import agent_of_app
from penstock_edge.surfaces.bodies import json_response, validated
from penstock_edge.surfaces.errors import (
    InvalidBody,
    body_error,
    unaccepted_as_422,
)
from penstock_edge.views.audience import PII

_NAMED: Final = (by.APP, by.USER_ID, by.APP_SESSION_ID)
_SESSION: Final = {200: json("The session", OBJECT)}
_of_user = partial(
    operation,
    path="/apps/{app}/users/{user}/sessions",
    parameters=(by.APP, by.USER_ID),
    refusals=UPSTREAM,
)
_of_session = partial(
    operation,
    path="/apps/{app}/users/{user}/sessions/{session}",
    parameters=_NAMED,
    refusals=UPSTREAM,
)


class Sessions:
    """Has the handlers of the session endpoints."""

    def __init__(self, edge: Edge, servers: AdkServers) -> None:
        self._edge = edge
        self._servers = servers
        self._sessions = SessionStore(edge.bus, edge.session_list)

    @serves(
        _of_user(
            method="GET",
            summary="A user's sessions",
            answers={200: json("The sessions, without events", a_list(OBJECT))},
            scopes=("read",),
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        named = await readable_by(self._edge, request)
        if named.agent.protocol == ADK:
            listed = await self._servers.ask("GET", named.agent, named.user_id)
            return relayed(await self._sessions.without_erased(named, listed))
        return json_response(
            await self._sessions.index(named, self._edge.turns.for_caller(identity_of(request)))
        )

    @serves(
        _of_session(
            method="GET",
            summary="A session with its events",
            answers=_SESSION,
            scopes=("read",),
            refusals=READING,
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        named = await readable_by(self._edge, request)
        if named.agent.protocol == ADK:
            return relayed(await self._servers.ask("GET", named.agent, named.user_id, named.id))
        who = identity_of(request)
        return json_response(
            await self._sessions.show(named, who, self._edge.turns.for_caller(who))
        )

    @serves(
        _of_user(
            method="POST",
            summary="Create a session",
            answers=_SESSION,
            scopes=("start",),
            body=CreateRequest,
            body_required=False,
            example={},
        )
    )
    async def create(self, request: Request) -> ASGIApp:
        named = session_named_by(self._edge, request)
        document = await self._document(request)
        asked = validated(CreateRequest, document)
        given = {
            name: value
            for name, value in document.items()
            if value is not None and name not in ("sessionId", "session_id")
        }
        return await self._create(named, asked.session_id or str(uuid.uuid4()), given)

    @serves(
        _of_session(
            method="POST",
            summary="Create a session of this id; the body is its state",
            answers=_SESSION,
            scopes=("start",),
            body={"type": ["object", "null"]},
            body_required=False,
            example={},
        )
    )
    async def create_named(self, request: Request) -> ASGIApp:
        named = session_named_by(self._edge, request)
        state = await self._document(request)
        return await self._create(named, named.id, {"state": state} if state else {})

    @serves(
        _of_session(
            method="PATCH",
            summary="Change an ADK session's state without a run",
            answers=_SESSION,
            scopes=("start",),
            body=ChangeRequest,
            example={"stateDelta": {}},
            refusals=READING,
        )
    )
    async def change(self, request: Request) -> ASGIApp:
        """Change the state of an ADK session without a run, under the same keys as at the start of
        a run; respond with the session. During a pause this is 409, because an approved tool could
        run with another state than the person saw."""
        named = await readable_by(self._edge, request)
        document = await self._document(request)
        if named.agent.protocol != ADK:
            raise Problem(422, "only the sessions of ADK agents have a state")
        with unaccepted_as_422():
            given = start_fields.accepted_input(ADK, named.agent.accepts, document)
        await self._sessions.check_at_rest(named)
        changed = await self._servers.ask("PATCH", named.agent, named.user_id, named.id, given)
        return relayed(changed)

    @serves(
        _of_session(
            method="DELETE",
            summary="Delete a session",
            answers={200: json("Null", {})},
            scopes=("start",),
        )
    )
    async def delete(self, request: Request) -> ASGIApp:
        """Respond with `null`, even if there is no such session."""
        named = session_named_by(self._edge, request)
        await ignore_body(request)
        await self._sessions.check_at_rest(named)
        answer: Response = json_response(None)
        if named.agent.protocol == ADK:
            answer = relayed(
                await self._servers.ask("DELETE", named.agent, named.user_id, named.id)
            )
        await self._sessions.forget(named)
        return answer

    async def _create(self, named: NamedSession, session_id: str, given: dict[str, Any]) -> ASGIApp:
        if named.agent.protocol == ADK:
            with unaccepted_as_422():
                start_fields.accepted_session(named.agent.accepts, given)
            created = await self._servers.create(named.agent, named.user_id, session_id, given)
            return relayed(created)
        refused = [name for name in ("state", "events") if given.get(name)]
        if refused:
            text = "only the sessions of ADK agents take this"
            raise InvalidBody(body_error("not_portable", (name,), text) for name in refused)
        session = NamedSession(named.agent, named.app, named.user_id, session_id)
        return json_response(await self._sessions.create(session))

    async def _document(self, request: Request) -> dict[str, Any]:
        """As in ADK, an empty body and `null` count as an empty object."""
        body = await read_body(request, self._edge.settings.max_body_bytes)
        if not body:
            return {}
        require_json(request)
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Problem(422, f"the body is not JSON: {error}") from error
        if document is None:
            return {}
        if not isinstance(document, dict):
            raise Problem(422, "the body must be an object")
        return document


def session_named_by(edge: Edge, request: Request) -> NamedSession:
    """Return an empty id if the path names only a user's sessions."""
    who = identity_of(request)
    path = request.path_params
    user_id = acting_user(who, path["user"])
    return NamedSession(
        agent_of_app(edge.config, path["app"]), path["app"], user_id, path.get("session", "")
    )


async def readable_by(edge: Edge, request: Request) -> NamedSession:
    """Require `raw` to read the session of an ADK agent, which is relayed byte for byte. Problem
    409 if runs of the agent have redactions, and 410 if content of the session was erased, since
    the ADK server knows nothing of these."""
    named = session_named_by(edge, request)
    if named.agent.protocol == ADK:
        who = identity_of(request)
        require(who, "raw")
        redactions = await edge.starter.redactions.in_force()
        if redactions.names(named.agent.id, sees_pii=who.has_scope(PII)):
            raise frames_refused(redactions.version)
        record = await edge.bus.bucket("sessions").load(named.key, SessionRecord)
        if record is not None and record.erased_at is not None:
            raise Problem(
                410,
                f"content of this session was erased at {record.erased_at}; the ADK server may "
                "still have it: delete the session, and it forgets it, too",
            )
    return named


# Clients can only read artifacts. Agents of other protocols have none. A request about a session of
# such an agent gets the response that an ADK server gives for a session without artifacts.

VERSIONS: Final = "versions"

_ARTIFACT: Final = in_path(
    "artifact", "The artifact's name and what is below it: `report.txt`, `report.txt/versions/1`"
)
_VERSION: Final = Parameter(
    "version", "The version of the artifact; the newest without it", {"type": "integer"}
)
_of_artifacts = partial(operation, method="GET", scopes=("read",), refusals=READING)
_SEPARATORS: Final = re.compile(r"[/\\]")


class Artifacts:
    """Has the handlers for a session's artifacts: the list, one artifact, and its versions."""

    def __init__(self, edge: Edge, servers: AdkServers) -> None:
        self._edge = edge
        self._servers = servers

    @serves(
        _of_artifacts(
            path="/apps/{app}/users/{user}/sessions/{session}/artifacts",
            summary="The names of a session's artifacts",
            answers={200: json("The names", a_list(TEXT))},
            parameters=_NAMED,
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        return await self._relay(request, [])

    @serves(
        _of_artifacts(
            path="/apps/{app}/users/{user}/sessions/{session}/artifacts/{artifact:path}",
            summary="An artifact, one of its versions, or what is known of its versions",
            answers={200: json("What the ADK server answers", {})},
            parameters=(*_NAMED, _ARTIFACT, _VERSION),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        path = request.path_params["artifact"]
        if any(part in (".", "..") for part in _SEPARATORS.split(path)):
            # A server or a proxy could resolve `..` to the path of another user's session.
            raise Problem(404, "Artifact not found")
        return await self._relay(request, path.split("/"))

    async def _relay(self, request: Request, below: list[str]) -> ASGIApp:
        named = await readable_by(self._edge, request)
        if named.agent.protocol != ADK:
            if not below or below[-1] == VERSIONS:
                return json_response([])
            raise Problem(404, "Artifact not found")
        query = {"version": version} if (version := request.query_params.get("version")) else {}
        return relayed(
            await self._servers.artifact(named.agent, named.user_id, named.id, below, query)
        )
