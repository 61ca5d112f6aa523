"""The settings of services that start runs."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import Settings


class StartSettings(Settings):
    """The limits of starts, which must be the same in all services."""

    max_open_runs_per_user: int = Field(
        500,
        ge=0,
        description="The number of queued or running runs of one user in the whole installation. "
        "A further start is answered with 429. 0 means no limit.",
    )
    max_queued_runs_per_user: int = Field(
        200,
        ge=0,
        description="The number of these runs that no connector has taken yet. 0 means no limit.",
    )
    max_paused_runs_per_user: int = Field(
        5000,
        ge=0,
        description="The number of runs of one user that wait for a decision. A further start is "
        "answered with 429. 0 means no limit.",
    )
    max_runs_per_root: int = Field(
        1000,
        ge=1,
        le=10_000,
        description="The number of runs to which one run may lead: the runs of a workflow's steps, "
        "the runs that rules start for its events, the runs below these, and so on. Each item of a "
        "`for_each` counts. A further start fails with code `limit_exceeded`.",
    )
