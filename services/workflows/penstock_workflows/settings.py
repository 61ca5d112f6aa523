"""The settings of the workflows service."""

from __future__ import annotations

from penstock.runs.settings import StartSettings


class WorkflowsSettings(StartSettings):
    """From the environment, as `PENSTOCK_<NAME>`."""
