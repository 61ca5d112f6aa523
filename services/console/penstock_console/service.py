"""The console as a service: it serves files, and its pages call the API of the other services."""

from __future__ import annotations

from typing import ClassVar

from penstock.service import Context, Service
from penstock.settings import Settings
from penstock_console.files import OPERATIONS, file_routes
from penstock_console.settings import ConsoleSettings


class ConsoleService(Service):
    """Serves the console's files.

    The files are public, because they contain no data: the scripts of the pages request all data
    from the API, with the rights of the signed-in user. The files are served even if the bus does
    not answer, because the pages say that the bus does not answer.
    """

    name = "console"
    settings_type: ClassVar[type[Settings]] = ConsoleSettings
    operations = OPERATIONS

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.routes = file_routes()

    async def start(self) -> None:
        """Start nothing: the files are in memory."""
