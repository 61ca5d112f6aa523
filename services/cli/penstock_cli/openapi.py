"""Write the OpenAPI document of all services: `python -m penstock_cli.openapi FILE`.

`penstock.contract.openapi` makes the document. This module only collects the operations that the
services declare, because only the CLI's package may import all services.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from penstock.contract import openapi
from penstock.contract.schemas import text
from penstock.web import credential_routes
from penstock.web.operation import Json
from penstock_approvals.service import ApprovalsService
from penstock_automations.service import AutomationsService
from penstock_console.service import ConsoleService
from penstock_edge.service import EdgeService
from penstock_workflows.service import WorkflowsService

OPERATIONS: Final = (
    *EdgeService.operations,
    *ApprovalsService.operations,
    *AutomationsService.operations,
    *WorkflowsService.operations,
    *ConsoleService.operations,
    *credential_routes.OPERATIONS,
)


def document() -> Json:
    """Return the whole document, as JSON."""
    return openapi.document(OPERATIONS)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(document()), encoding="utf-8")
