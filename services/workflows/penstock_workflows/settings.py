"""The settings of the workflows service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from penstock.runs.settings import StartSettings


class WorkflowsSettings(StartSettings):
    """The settings, each from the environment variable `PENSTOCK_<NAME>`."""

    workflows: Path | None = Field(
        None,
        description="The path of a file with the definition of a workflow, or of a folder with "
        "such files (`.yaml`, `.yml`, `.json`). A version that is stored already must not change.",
    )
    workflows_per_user: int = Field(
        100,
        ge=0,
        description="How many workflows one user may make over HTTP, retired ones included. There "
        "are at most 1,000 in all.",
    )
    start_max_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description="Bytes that the body of a request to start a workflow may have.",
    )
    journal_kept_s: float = Field(
        30 * 86_400.0,
        ge=1,
        description="Seconds after the end of a workflow's run for which its journal is kept.",
    )
    runs_in_memory: int = Field(
        2000,
        ge=1,
        description="How many workflows' runs one process keeps in memory. The journal of any "
        "other run is read again when something happens in it.",
    )
    steps_per_run: int = Field(
        10_000_000,
        ge=100_000,
        description="Steps that the expressions and decisions of one workflow's run may take. A "
        "step takes about a microsecond of CPU time. A run that takes more fails with the code "
        "`limit_exceeded`.",
    )
    inputs_at_once: int = Field(
        64,
        ge=1,
        le=1000,
        description="How many inputs of one kind a process handles at once: events, timers, or "
        "commands of a kind. Those of one run are handled one after another.",
    )
    input_ack_wait_s: float = Field(
        10.0,
        ge=0.2,
        description="Seconds after which another process gets an input of a process that ended.",
    )
