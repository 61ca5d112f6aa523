"""Provides the workflows of the demo, which are a code review and a diagnosis by teams.

The service `workflows` reads the definitions from the folder `workflows`. If the operator has
definitions (`PENSTOCK_WORKFLOWS`), the demo has no workflows. Whoever changes a definition must
give it a new version, because the data folder of a user may have the earlier version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.settings import AgentConfig, agent_config

FOLDER: Final = Path(__file__).parent / "workflows"
_SETTING: Final = "PENSTOCK_WORKFLOWS"
# The workflows that clients can start by their names or their topology ids. `diagnosis_team` is not
# listed, because `diagnosis` starts it.
_AGENTS: Final = (
    {"id": "code_review", "name": "Code Review", "topology_id": 200},
    {"id": "diagnosis", "name": "Diagnosis", "topology_id": 123},
)


def switch_on() -> list[AgentConfig]:
    """Make the service `workflows` read the demo's definitions. Return the agents that start these
    workflows. If the operator has definitions, nothing is changed and the result is empty."""
    if os.environ.setdefault(_SETTING, str(FOLDER)) != str(FOLDER):
        return []
    return [agent_config({"protocol": "workflow", **agent}) for agent in _AGENTS]
