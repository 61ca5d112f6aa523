"""Reads and writes the definitions in KV `workflows`.

A version is immutable. A pointer for each workflow names the latest version. This is the version
that was stored last, unless somebody has named another version, or has retired the workflow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from penstock.bus import Bus
from penstock.bus.records.workflows import LatestWorkflow, ScheduledRuns, WorkflowRecord
from penstock.runs.workflows import BUCKET, latest_key, version_key
from penstock.settings import Config, ConfigurationError
from penstock.turns import TenantUser
from penstock.web.auth.identity import RunUser
from penstock.web.auth.limits import limited
from penstock_workflows.definition import InvalidDefinition, Loaded, Problem, load
from penstock_workflows.definition.checks import taken_name, unknown_references
from penstock_workflows.definition.model import Schedule, seconds

log = logging.getLogger(__name__)

BY: Final = "file"  # who stores the definitions of files
MAX_WORKFLOWS: Final = 1000
MAX_OF_TENANT: Final = MAX_WORKFLOWS // 2  # so that no tenant takes all places
MAX_VERSIONS: Final = 500  # the greatest number of versions of one workflow

Outcome = Literal["created", "same"]


class VersionConflict(Exception):
    """A version is stored already, with other content."""


class TooManyWorkflows(Exception):
    """A limit of workflows, or of versions of a workflow, is reached."""


@dataclass(frozen=True, slots=True)
class ListedWorkflow:
    """A workflow: its name, and the pointer to its latest version."""

    name: str
    latest: LatestWorkflow


class WorkflowStore:
    """Reads and writes definitions. A repeated write changes nothing. Each method raises BusError
    if the bucket does not answer; whether a write was done is then unknown."""

    def __init__(self, bus: Bus, per_user: int = MAX_WORKFLOWS, *, tenant_limits: int = 0) -> None:
        """`per_user` is how many workflows one user may make, and `tenant_limits` the setting."""
        self.bus = self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._per_user = per_user
        self._tenant_limits = tenant_limits

    async def put(
        self, loaded: Loaded, by: str, tenant: str = "", *, runs_for: RunUser | None = None
    ) -> tuple[WorkflowRecord, Outcome]:
        """Store a version that is not stored yet, and make it the latest version. `runs_for` is the
        user of the runs that its schedule starts; None if nobody but `by` is behind them.

        A repeated put also completes an earlier one that was interrupted before the version became
        the latest one. If the pointer was changed after the version was stored, a put leaves it as
        it is.

        Raises:
            VersionConflict: the version is stored with other content.
            TooManyWorkflows: there are too many workflows or versions.
        """
        definition = loaded.workflow.definition
        key = version_key(definition.name, definition.version)
        record = await self._read(key)
        outcome: Outcome = "same"
        if record is None:
            await self._require_room(definition.name, TenantUser(tenant, by))
            record = WorkflowRecord(
                name=definition.name,
                version=definition.version,
                digest=loaded.digest,
                definition=loaded.value,
                input_schema=definition.input,
                topology_id=definition.topology_id,
                created_at=self._bus.clock.stamp(),
                created_by=by,
                schedule=_scheduled(definition.schedule, runs_for or RunUser(by, (), (), tenant)),
            )
            if await self._bucket.create(key, record.dump()) is not None:
                outcome = "created"
            else:
                record = await self._read(key) or record
        if record.digest != loaded.digest:
            raise VersionConflict(
                f"version {record.version} of the workflow {record.name} is stored with other "
                "content, and a stored version never changes: give the definition a new version"
            )
        by, at = record.created_by, record.created_at
        latest = LatestWorkflow(
            version=record.version,
            updated_at=at,
            updated_by=by,
            made_by=by,
            tenant=tenant,
            schedule=record.schedule,
        )
        await self._point(record.name, latest)
        return record, outcome

    async def name_latest(
        self, name: str, record: WorkflowRecord | None, by: str
    ) -> LatestWorkflow:
        """Make a stored version the latest one; with None, retire the workflow."""
        wanted = LatestWorkflow(updated_at=self._bus.clock.stamp(), updated_by=by)
        if record is not None:
            wanted.version, wanted.schedule = record.version, record.schedule
        return await self._point(name, wanted)

    async def _point(self, name: str, wanted: LatestWorkflow) -> LatestWorkflow:
        """Write the pointer `wanted`, unless the stored pointer is newer; return the stored one."""

        def point(latest: LatestWorkflow) -> None:
            if latest.updated_at < wanted.updated_at:
                latest.version, latest.updated_at = wanted.version, wanted.updated_at
                latest.updated_by, latest.schedule = wanted.updated_by, wanted.schedule

        return await self._bucket.change(latest_key(name), LatestWorkflow, point, wanted) or wanted

    async def workflows(self) -> list[ListedWorkflow]:
        """Return all workflows, also retired ones, sorted by their names."""
        entries = await self._bucket.entries(latest_key("*"))
        found = [
            ListedWorkflow(each.key.removeprefix(latest_key("")), _latest(each.value))
            for each in entries
        ]
        return sorted(found, key=lambda each: each.name)

    async def latest(self, name: str) -> LatestWorkflow | None:
        entry = await self._bucket.get(latest_key(name))
        return _latest(entry.value) if entry is not None else None

    async def many(self, wanted: Iterable[tuple[str, str]]) -> dict[str, WorkflowRecord]:
        """Return the records of those versions (name, version) that exist, by the workflow's
        name."""
        keys = [version_key(name, version) for name, version in wanted]
        entries = await self._bucket.many(keys)
        found = [_record(entry.key, entry.value) for entry in entries.values()]
        return {record.name: record for record in found if record is not None}

    async def versions(self, name: str) -> list[WorkflowRecord]:
        """Return the versions of a workflow, the oldest first."""
        entries = await self._bucket.entries(version_key(name, ">"))
        found = [_record(each.key, each.value) for each in entries]
        return sorted(filter(None, found), key=lambda record: record.created_at)

    async def startable(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the versions of those of these workflows that can start, by name."""
        found: dict[str, list[str]] = {}
        for name in names:
            latest = await self.latest(name)
            if latest is not None and latest.version is not None:
                found[name] = [record.version for record in await self.versions(name)]
        return found

    async def _read(self, key: str) -> WorkflowRecord | None:
        return await self._bucket.load(key, WorkflowRecord)

    async def _require_room(self, name: str, user: TenantUser) -> None:
        if await self.latest(name) is not None:
            if len(await self.versions(name)) >= MAX_VERSIONS:
                raise TooManyWorkflows(
                    f"the workflow {name} has {MAX_VERSIONS} versions, and none can be deleted "
                    f"(GET /v1/workflows/{name}/versions tells who stored them): use another name"
                )
            return
        found = await self.workflows()
        if len(found) >= MAX_WORKFLOWS:
            raise TooManyWorkflows(f"there are {MAX_WORKFLOWS} workflows, and more are not allowed")
        if user.user_id == BY:
            return
        for level, whose, times in limited(user, self._tenant_limits):
            most = self._per_user if times == 1 else min(self._per_user * times, MAX_OF_TENANT)
            if sum(level in each.latest.maker.levels for each in found) >= most:
                raise TooManyWorkflows(
                    f"{whose} may make {most} workflows (PENSTOCK_WORKFLOWS_PER_USER), also "
                    "retired ones count, and has made as many: store a new version of one of them"
                )


def _scheduled(schedule: Schedule | None, user: RunUser) -> ScheduledRuns | None:
    if schedule is None:
        return None
    return ScheduledRuns(
        cron=schedule.cron,
        timezone=schedule.timezone,
        catch_up_s=seconds(schedule.catch_up),
        input=schedule.input,
        user_id=user.user_id,
        tenant=user.tenant,
        roles=list(user.roles),
        started_by=list(user.started_by),
    )


def _latest(value: bytes) -> LatestWorkflow:
    return LatestWorkflow.model_validate_json(value)


def _record(key: str, value: bytes) -> WorkflowRecord | None:
    try:
        return WorkflowRecord.model_validate_json(value)
    except ValidationError as error:
        log.error("the definition %s cannot be read: %s", key, error)
        return None


SUFFIXES: Final = (".yaml", ".yml", ".json")


def definitions_in(path: Path) -> list[Path]:
    """Return the files of a folder that have definitions, or the file itself. Raises OSError."""
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and not is_test(each))


def is_test(path: Path) -> bool:
    """Return whether a file has tests of a workflow, such as `trip.test.yaml`."""
    return path.suffix in SUFFIXES and path.stem.endswith(".test")


def read_files(path: Path) -> dict[Path, Loaded]:
    """Return the definitions of a file or folder. Raises ConfigurationError, which names file and
    lines."""
    try:
        contents = {each: each.read_bytes() for each in definitions_in(path)}
    except OSError as error:
        text = f"the workflows in {path} cannot be read: {error.strerror}"
        raise ConfigurationError(text) from error
    found: dict[Path, Loaded] = {}
    names: dict[tuple[str, str], Path] = {}
    for each, content in contents.items():
        try:
            loaded = load(content)
        except InvalidDefinition as error:
            raise wrong_file(each, error) from None
        key = (loaded.workflow.name, loaded.workflow.version)
        if key in names:
            reason = f"{names[key]} and {each} have the same workflow {key[0]}, version {key[1]}"
            raise ConfigurationError(reason)
        names[key] = each
        found[each] = loaded
    return found


def wrong_file(path: Path, error: InvalidDefinition) -> ConfigurationError:
    lines = []
    for each in error.problems:
        where = each.position
        place = f"{path}:{where.line}:{where.column}" if where is not None else str(path)
        lines.append(f"{place}: {each.field}: {each.reason}")
    return ConfigurationError("\n".join(lines))


def _user_in_file(loaded: Loaded) -> RunUser | None:
    """Return the user of scheduled runs. Raises InvalidDefinition without one."""
    if (schedule := loaded.workflow.definition.schedule) is None:
        return None
    if schedule.user is None:
        reason = "a run belongs to a user: name one, since a file is nobody's"
        loaded.refuse([Problem(("schedule", "user"), reason)])
    return RunUser(schedule.user or "", (), (), "")


async def apply_files(path: Path, store: WorkflowStore, config: Config) -> None:
    """Store the definitions of a file or folder; versions that are stored already stay.

    Raises:
        ConfigurationError: a definition is wrong, names an agent or a workflow that does not exist,
            or is stored with other content under the same version.
    """
    found = await asyncio.to_thread(read_files, path)
    agents = [agent.id for agent in config.agents]
    stored = {each.name: [each.latest.version or ""] for each in await store.workflows()}
    known: dict[str, Collection[str]] = {**stored}
    for loaded in found.values():
        name = loaded.workflow.name
        known[name] = [*known.get(name, ()), loaded.workflow.version]
    for each, loaded in found.items():
        try:
            _user_in_file(loaded)
            loaded.refuse(
                [
                    *taken_name(loaded.workflow, config),
                    *unknown_references(loaded.workflow, agents, known),
                ]
            )
        except InvalidDefinition as error:
            raise wrong_file(each, error) from None
    for each, loaded in found.items():
        try:
            record, outcome = await store.put(loaded, BY, runs_for=_user_in_file(loaded))
        except (VersionConflict, TooManyWorkflows) as error:
            raise ConfigurationError(f"{each}: {error}") from None
        if outcome == "created":
            log.info("stored version %s of the workflow %s", record.version, record.name)
