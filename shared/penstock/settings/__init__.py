"""Reads and checks the configuration file and the environment.

The file and the environment are read once, at the start.
"""

from penstock.settings.agents import (
    AdkAgent,
    AgentBase,
    AgentConfig,
    AgentOfServer,
    AgnoAgent,
    AguiAgent,
    Config,
    ServerAgent,
    WorkflowAgent,
    agent_config,
    load_config,
)
from penstock.settings.auth import AuthSettings, Words
from penstock.settings.environment import (
    ConfigurationError,
    explained,
    read_settings,
    variable_name,
)
from penstock.settings.service import Settings, nats_login

__all__ = [
    "AdkAgent",
    "AgentBase",
    "AgentConfig",
    "AgentOfServer",
    "AgnoAgent",
    "AguiAgent",
    "AuthSettings",
    "Config",
    "ConfigurationError",
    "ServerAgent",
    "Settings",
    "Words",
    "WorkflowAgent",
    "agent_config",
    "explained",
    "load_config",
    "nats_login",
    "read_settings",
    "variable_name",
]
