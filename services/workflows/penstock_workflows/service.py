"""The workflows service carries out the runs of workflows."""

from __future__ import annotations

from typing import ClassVar

from penstock.service import Service
from penstock.settings import Settings
from penstock_workflows.settings import WorkflowsSettings


class WorkflowsService(Service):
    """Carries out the runs of workflows."""

    name: ClassVar[str] = "workflows"
    settings_type: ClassVar[type[Settings]] = WorkflowsSettings

    async def start(self) -> None:
        """Start nothing yet."""
