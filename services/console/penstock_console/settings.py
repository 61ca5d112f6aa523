"""The settings of the console."""

from __future__ import annotations

from penstock.settings import Settings


class ConsoleSettings(Settings):
    """The settings, all of which every service has."""
