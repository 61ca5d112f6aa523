"""The workflows of the demo: a code review, and a diagnosis by teams.

The service `workflows` reads the definitions from the folder `workflows`. The demo has no workflows
if the operator has a file of definitions (`PENSTOCK_WORKFLOWS`). A definition that is changed needs
a new version, because a data folder may have the earlier one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.settings import AgentConfig, agent_config

FOLDER: Final = Path(__file__).parent / "workflows"
_SETTING: Final = "PENSTOCK_WORKFLOWS"
# The workflows that clients can start by name or by topology. `diagnosis` starts `diagnosis_team`.
_AGENTS: Final = (
    {"id": "code_review", "name": "Code Review", "topology_id": 200},
    {"id": "diagnosis", "name": "Diagnosis", "topology_id": 123},
)


def switch_on() -> list[AgentConfig]:
    """Have the service read the demo's definitions; return the agents that start them.

    The result is empty if the operator has definitions.
    """
    if os.environ.setdefault(_SETTING, str(FOLDER)) != str(FOLDER):
        return []
    return [agent_config({"protocol": "workflow", **agent}) for agent in _AGENTS]
