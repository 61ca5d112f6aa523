"""A scripted agent for Agno AgentOS: `uvicorn agno_app:app`. AGENT_DATA: a folder for its data."""

import asyncio
import json
import os
import uuid
from dataclasses import dataclass

import script
from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.os import AgentOS
from agno.tools import tool


@dataclass
class Scripted(Model):
    """Plays the script in place of a language model."""

    id: str = "script"
    name: str = "Script"
    provider: str = "Script"

    async def ainvoke_stream(self, messages, *args, **kwargs):
        asked = max(
            (n for n, message in enumerate(messages) if message.role == "user"), default=None
        )
        if asked is None:
            raise ValueError("the model was asked without a message of the user")
        results = [str(each.content) for each in messages[asked + 1 :] if each.role == "tool"]
        async for kind, value in script.play(str(messages[asked].content), results):
            if kind == "say":
                yield ModelResponse(role="assistant", content=value)
            elif kind == "think":
                yield ModelResponse(role="assistant", reasoning_content=value)
            else:
                name, arguments = value
                function = {"name": name, "arguments": json.dumps(arguments)}
                id = f"call_{uuid.uuid4().hex[:12]}"
                call = {"id": id, "type": "function", "function": function}
                yield ModelResponse(role="assistant", tool_calls=[call])

    def invoke(self, *args, **kwargs):
        raise NotImplementedError("this script only streams: ask the server for a stream")

    ainvoke = invoke_stream = invoke

    def _parse_provider_response(self, response, **kwargs):
        return response

    def _parse_provider_response_delta(self, response):
        return response


@tool(requires_confirmation=True)
def guarded(name: str) -> str:
    """Do something for which the agent asks first."""
    return script.guarded(name)


async def effect(run: str, call: int) -> str:
    """Have the side effect that is counted."""
    return await asyncio.to_thread(script.effect, run, call)


db = SqliteDb(db_file=os.path.join(os.environ["AGENT_DATA"], "agno.sqlite"))
tools = [script.lookup, guarded, effect]
agent = Agent(id="scripted", model=Scripted(), db=db, tools=tools, telemetry=False)
app = AgentOS(id="scripted", agents=[agent], db=db, telemetry=False).get_app()
