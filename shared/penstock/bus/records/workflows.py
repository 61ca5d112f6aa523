"""Definitions of workflows, as they are stored."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from penstock.bus.records.base import Record
from penstock.turns import TenantUser


class ScheduledRuns(Record):
    """The schedule of a workflow's version, and for whom its runs are started."""

    cron: str
    timezone: str
    catch_up_s: float
    input: dict[str, Any] | None = None
    user_id: str = Field(description="Who stored the version, or the user that it names")
    tenant: str = ""
    roles: list[str] = Field([], description="The roles that this user had then")
    started_by: list[str] = Field([], description="As in the run's record")


class WorkflowRecord(Record):
    """KV `workflows`, key `v.<name>.<version>`: a version of a workflow. It never changes."""

    name: str
    version: str
    digest: str = Field(description="sha256 of the definition's canonical JSON, in hex")
    definition: dict[str, Any]
    input_schema: dict[str, Any] = Field(
        {}, description="The JSON Schema of the input; {} allows every object"
    )
    topology_id: int | None = None
    created_at: str
    created_by: str
    schedule: ScheduledRuns | None = None


class LatestWorkflow(Record):
    """KV `workflows`, key `latest.<name>`: the version that a start without a version takes.

    Without a version, the workflow is retired and cannot be started.
    """

    version: str | None = None
    updated_at: str = Field("", description="When the latest version was named, or retired")
    updated_by: str = ""
    made_by: str = Field("", description="Who stored the first version")
    tenant: str = Field("", description="The tenant of this user; empty without one")
    schedule: ScheduledRuns | None = Field(
        None, description="That of the version; the service automations starts its runs"
    )

    @property
    def maker(self) -> TenantUser:
        return TenantUser(self.tenant, self.made_by)
