"""The demo ADK server, the app of `adk api_server`. This module runs in ADK's environment.

The environment variable DEMO_DATA names the folder in which the server stores its sessions.
"""

# Penstock's type checks run in an environment without ADK.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
from pathlib import Path

from google.adk.cli.fast_api import get_fast_api_app

_HERE = Path(__file__).parent

app = get_fast_api_app(
    agents_dir=str(_HERE / "adk_agents"),
    # Sessions must survive a restart of the server, because Penstock keeps runs that wait for an
    # approval, and such runs need their sessions.
    session_service_uri=f"sqlite:///{Path(os.environ['DEMO_DATA']).absolute() / 'adk.sqlite'}",
    artifact_service_uri="memory://",
    memory_service_uri="memory://",
    use_local_storage=False,
    web=False,
)
