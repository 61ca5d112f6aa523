"""The automations service. In this version it has no loops yet: see the README."""

from __future__ import annotations

from typing import ClassVar

from penstock.service import Context, Service
from penstock.settings import Settings
from penstock_automations.settings import AutomationsSettings


class AutomationsService(Service):
    """Matches events with rules, and delivers the matches."""

    name: ClassVar[str] = "automations"
    settings_type: ClassVar[type[Settings]] = AutomationsSettings

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, AutomationsSettings)
        self._settings = context.settings

    async def start(self) -> None:
        """Start the loops."""
