"""The demo AgentOS: real Agno, with a scripted model. This module runs in Agno's environment.

The environment variable DEMO_DATA names the folder with the server's database.
"""

# Penstock's type checks run in an environment without Agno.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator,no-any-return"

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.os import AgentOS
from agno.tools import tool
from script import FREE_TOOLS, Call, Fail, Say, Step, Think, delete_file, steps


@dataclass
class ScriptedModel(Model):
    """Plays the script in place of a language model."""

    id: str = "script"
    name: str = "Script"
    provider: str = "Demo"

    async def ainvoke_stream(
        self, messages: list[Message], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ModelResponse]:
        """Yield the model's turn step by step, at the script's pace."""
        for step in _turn(messages):
            await asyncio.sleep(step.pause_s if isinstance(step, Say) else 0)
            yield _response(step)

    def invoke_stream(
        self, messages: list[Message], *args: Any, **kwargs: Any
    ) -> Iterator[ModelResponse]:
        return map(_response, _turn(messages))

    async def ainvoke(self, messages: list[Message], *args: Any, **kwargs: Any) -> ModelResponse:
        return self.invoke(messages)

    def invoke(self, messages: list[Message], *args: Any, **kwargs: Any) -> ModelResponse:
        whole = ModelResponse(role="assistant", content="")
        for part in self.invoke_stream(messages):
            whole.content += part.content or ""
            whole.tool_calls += part.tool_calls
        return whole

    def _parse_provider_response(self, response: Any, **kwargs: Any) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        return response


def _turn(messages: Sequence[Message]) -> Iterator[Step]:
    asked = max(index for index, message in enumerate(messages) if message.role == "user")
    results = [str(m.content) for m in messages[asked + 1 :] if m.role == "tool"]
    return steps(str(messages[asked].content), results)


def _response(step: Step) -> ModelResponse:
    match step:
        case Think(text):
            return ModelResponse(role="assistant", reasoning_content=text)
        case Say(text):
            return ModelResponse(role="assistant", content=text)
        case Call(name, args):
            function = {"name": name, "arguments": json.dumps(args)}
            call = {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
            return ModelResponse(role="assistant", tool_calls=[call])
        case Fail(error):
            raise RuntimeError(error)


_db = SqliteDb(db_file=str(Path(os.environ["DEMO_DATA"]) / "agno.sqlite"))
_tools = [*FREE_TOOLS, tool(requires_confirmation=True)(delete_file)]
_agents = [
    Agent(id=agent_id, name=name, model=ScriptedModel(), db=_db, tools=_tools, telemetry=False)
    for agent_id, name in (
        ("assistant", "Demo Assistant"),
        ("mindrian-agent", "Mindrian"),
        # These agents work in the workflows of the demo.
        ("linter", "Linter"),
        ("writer", "Writer"),
        ("global_supervisor", "Global Supervisor"),
        ("database_monitor", "Database Monitor"),
    )
]

app = AgentOS(id="penstock-demo", agents=_agents, db=_db, telemetry=False).get_app()
