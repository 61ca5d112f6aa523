"""Serves the routes of definitions: list, show, store, check, retire."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.runs.workflows import find_workflow
from penstock.settings import Config
from penstock.web.answers import json_answer, page_after
from penstock.web.auth import acting_user, identity_of
from penstock.web.auth.identity import require
from penstock.web.bodies import ignore_body, read_model, read_query
from penstock.web.operation import (
    FLAG,
    NULLABLE,
    OBJECT,
    TEXT,
    Answer,
    Json,
    a_list,
    an_object,
    in_query,
    json,
    serves,
)
from penstock.web.problems import Problem
from penstock_workflows.api.common import (
    BODY_TYPES,
    VERSION,
    WORKFLOW,
    invalid_definition,
    name_of,
    operation,
    read_definition,
)
from penstock_workflows.definition import InvalidDefinition, Loaded
from penstock_workflows.definition.checks import taken_name, unknown_references
from penstock_workflows.definition.compiled import SubWorkflow
from penstock_workflows.definition.graph import mermaid
from penstock_workflows.definition.model import Definition
from penstock_workflows.registry import TooManyWorkflows, VersionConflict, WorkflowStore

MAX_PAGE: Final = 500
EXAMPLE: Final = {
    "dsl": "penstock/1",
    "name": "greet",
    "version": "1",
    "steps": {"hello": {"run": {"agent": "assistant", "message": '"Greet " + input.who'}}},
    "output": "hello.output.text",
}


class Query(BaseModel):
    """Which workflows to list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=MAX_PAGE, description="How many workflows a page has at most")
    after: str | None = Field(None, max_length=64, description="`next` of the page before")


class LatestBody(BaseModel):
    """The version that becomes the latest one."""

    model_config = ConfigDict(extra="forbid")

    version: str = Field(max_length=32, description="A version that is stored.")


_FILTERS: Final = in_query(Query)
_SUMMARY: Final[Json] = an_object(
    name=TEXT,
    version=NULLABLE,
    title=TEXT,
    description=TEXT,
    topology_id={"type": ["integer", "null"]},
    input=OBJECT,
    retired=FLAG,
    updated_at=TEXT,
    updated_by=TEXT,
)
_RECORD: Final[Json] = an_object(
    name=TEXT,
    version=TEXT,
    digest=TEXT,
    definition=OBJECT,
    input_schema=OBJECT,
    created_at=TEXT,
    created_by=TEXT,
    is_latest=FLAG,
)
_VERSION: Final[Json] = an_object(
    version=TEXT, digest=TEXT, created_at=TEXT, created_by=TEXT, is_latest=FLAG
)
_POINTER: Final[Json] = an_object(name=TEXT, version=NULLABLE, updated_at=TEXT, updated_by=TEXT)
_CHECKED: Final[Json] = an_object(
    name=TEXT, version=TEXT, digest=TEXT, steps=a_list(TEXT), mermaid=TEXT
)


class Definitions:
    """The handlers of the routes."""

    def __init__(self, store: WorkflowStore, config: Config) -> None:
        self._store = store
        self._config = config
        self._agents = [agent.id for agent in config.agents]

    @serves(
        operation(
            method="GET",
            path="/v1/workflows",
            summary="The workflows by name, also those that are retired",
            answers={200: json("A page", an_object(workflows=a_list(_SUMMARY), next=NULLABLE))},
            scopes=("read",),
            parameters=_FILTERS,
        )
    )
    async def index(self, request: Request) -> Response:
        query = read_query(request, Query)
        found = await self._store.workflows()
        page, more = page_after(found, query.after, query.limit, lambda each: each.name)
        wanted = [(each.name, each.latest.version) for each in page if each.latest.version]
        records = await self._store.many(wanted)
        return json_answer(
            {
                "workflows": [
                    _summary(each.name, each.latest, records.get(each.name)) for each in page
                ],
                "next": page[-1].name if more else None,
            }
        )

    @serves(
        operation(
            method="GET",
            path="/v1/workflows/{name}",
            summary="The latest version of a workflow",
            answers={200: json("The version", _RECORD)},
            scopes=("read",),
            parameters=(WORKFLOW,),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> Response:
        record = await find_workflow(self._store.bus, name_of(request), None)
        return json_answer(_shown(record, is_latest=True))

    @serves(
        operation(
            method="GET",
            path="/v1/workflows/{name}/versions",
            summary="The versions of a workflow, the oldest first",
            answers={200: json("The versions", an_object(versions=a_list(_VERSION)))},
            scopes=("read",),
            parameters=(WORKFLOW,),
            refusals=(404,),
        )
    )
    async def versions(self, request: Request) -> Response:
        name = name_of(request)
        latest = await self._latest(name)
        found = await self._store.versions(name)
        listed = [
            {
                **record.model_dump(include={"version", "digest", "created_at", "created_by"}),
                "is_latest": record.version == latest.version,
            }
            for record in found
        ]
        return json_answer({"versions": listed})

    @serves(
        operation(
            method="GET",
            path="/v1/workflows/{name}/versions/{version}",
            summary="One version of a workflow",
            answers={200: json("The version", _RECORD)},
            scopes=("read",),
            parameters=(WORKFLOW, VERSION),
            refusals=(404,),
        )
    )
    async def show_version(self, request: Request) -> Response:
        name, version = name_of(request), str(request.path_params["version"])
        record = await find_workflow(self._store.bus, name, version)
        latest = await self._latest(name)
        return json_answer(_shown(record, is_latest=latest.version == record.version))

    @serves(
        operation(
            method="PUT",
            path="/v1/workflows/{name}/versions/{version}",
            summary="Store a version, which becomes the latest one; a stored version never changes",
            description="The body has the definition, as JSON or YAML. A repeated request with the "
            "same content changes nothing (200). Other content is refused with 409.",
            answers={
                200: json("The version, which was stored before", _RECORD),
                201: json("The new version", _RECORD),
            },
            scopes=("workflow",),
            sometimes={
                "start": "to store a version with a schedule",
                "act-as": "if the schedule names another user",
            },
            parameters=(WORKFLOW, VERSION),
            body=Definition,
            body_types=BODY_TYPES,
            example=EXAMPLE,
            refusals=(404, 409),
        )
    )
    async def store(self, request: Request) -> Response:
        name, version = name_of(request), str(request.path_params["version"])
        loaded = await self._checked(request)
        for field, path, given in (
            ("name", name, loaded.workflow.name),
            ("version", version, loaded.workflow.version),
        ):
            if path != given:
                reason = f"the path has {path[:64]!r}, and the definition {given!r}"
                errors = [{"field": field, "message": reason}]
                raise Problem(422, f"{field}: {reason}", errors=errors)
        who, runs_for = identity_of(request), None
        if (schedule := loaded.workflow.definition.schedule) is not None:
            require(who, "start")
            runs_for = who.run_user(acting_user(who, schedule.user))
        try:
            record, outcome = await self._store.put(
                loaded, who.user_id, who.tenant, runs_for=runs_for
            )
        except (VersionConflict, TooManyWorkflows) as error:
            raise Problem(409, str(error)) from None
        latest = await self._latest(name)
        shown = _shown(record, is_latest=latest.version == record.version)
        return json_answer(shown, 201 if outcome == "created" else 200)

    @serves(
        operation(
            method="PUT",
            path="/v1/workflows/{name}/latest",
            summary="Name the version that a start takes; also ends a retirement",
            answers={200: json("The pointer to the latest version", _POINTER)},
            scopes=("workflow",),
            parameters=(WORKFLOW,),
            body=LatestBody,
            example={"version": "1"},
            refusals=(404,),
        )
    )
    async def name_latest(self, request: Request) -> Response:
        name = name_of(request)
        body = await read_model(request, LatestBody)
        record = await find_workflow(self._store.bus, name, body.version)
        by = identity_of(request).user_id
        return _pointer(name, await self._store.name_latest(name, record, by))

    @serves(
        operation(
            method="DELETE",
            path="/v1/workflows/{name}",
            summary="Retire a workflow: it cannot be started; its versions and runs stay",
            answers={204: Answer("The workflow is retired")},
            scopes=("workflow",),
            parameters=(WORKFLOW,),
            refusals=(404,),
        )
    )
    async def retire(self, request: Request) -> Response:
        await ignore_body(request)
        name = name_of(request)
        await self._latest(name)
        await self._store.name_latest(name, None, identity_of(request).user_id)
        return Response(status_code=204)

    @serves(
        operation(
            method="POST",
            path="/v1/workflows/validate",
            summary="Check a definition without storing it",
            answers={200: json("The definition has no mistakes", _CHECKED)},
            scopes=("workflow",),
            body=Definition,
            body_types=BODY_TYPES,
            example=EXAMPLE,
        )
    )
    async def validate(self, request: Request) -> Response:
        loaded = await self._checked(request)
        workflow = loaded.workflow
        return json_answer(
            {
                "name": workflow.name,
                "version": workflow.version,
                "digest": loaded.digest,
                "steps": list(workflow.steps),
                "mermaid": mermaid(workflow),
            }
        )

    async def _checked(self, request: Request) -> Loaded:
        """Return the definition in the body, whose agents and workflows exist."""
        loaded = await read_definition(request)
        actions = [step.action for step in loaded.workflow.steps.values()]
        names = {each.workflow for each in actions if isinstance(each, SubWorkflow)}
        known = await self._store.startable(names)
        try:
            loaded.refuse(
                [
                    *taken_name(loaded.workflow, self._config),
                    *unknown_references(loaded.workflow, self._agents, known),
                ]
            )
        except InvalidDefinition as error:
            raise invalid_definition(error) from None
        return loaded

    async def _latest(self, name: str) -> LatestWorkflow:
        latest = await self._store.latest(name)
        if latest is None:
            raise Problem(404, f"there is no workflow {name!r}")
        return latest


def _summary(name: str, latest: LatestWorkflow, record: WorkflowRecord | None) -> dict[str, Any]:
    definition = record.definition if record is not None else {}
    return {
        "name": name,
        "version": latest.version,
        "title": definition.get("title", ""),
        "description": definition.get("description", ""),
        "topology_id": record.topology_id if record is not None else None,
        "input": record.input_schema if record is not None else {},
        "retired": latest.version is None,
        "updated_at": latest.updated_at,
        "updated_by": latest.updated_by,
    }


def _shown(record: WorkflowRecord, *, is_latest: bool) -> dict[str, Any]:
    return {**record.model_dump(mode="json", exclude={"schedule"}), "is_latest": is_latest}


def _pointer(name: str, latest: LatestWorkflow) -> Response:
    shown = latest.model_dump(mode="json", exclude={"made_by", "tenant", "schedule"})
    return json_answer({"name": name, **shown})
