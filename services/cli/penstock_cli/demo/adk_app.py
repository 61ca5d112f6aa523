"""The demo ADK server: what `adk api_server` serves. Runs in ADK's own environment.

Environment: DEMO_DATA, the folder of its sessions.
"""

# Our checks run where ADK is not installed.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
from pathlib import Path

from google.adk.cli.fast_api import get_fast_api_app

_HERE = Path(__file__).parent

app = get_fast_api_app(
    agents_dir=str(_HERE / "adk_agents"),
    # kept over a restart, as a run that waits for an approval is
    session_service_uri=f"sqlite:///{Path(os.environ['DEMO_DATA']).absolute() / 'adk.sqlite'}",
    artifact_service_uri="memory://",
    memory_service_uri="memory://",
    use_local_storage=False,
    web=False,
)
