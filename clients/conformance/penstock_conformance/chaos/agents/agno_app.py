"""A scripted agent for Agno AgentOS: `uvicorn agno_app:app`. CHAOS_DATA: a folder for its data."""

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
        calls_made = sum(message.role == "tool" for message in messages[asked + 1 :])
        for word in script.words(calls_made):
            await asyncio.sleep(script.PAUSE_S)
            yield ModelResponse(role="assistant", content=word)
        arguments = script.next_call(str(messages[asked].content), calls_made)
        if arguments is not None:
            function = {"name": "effect", "arguments": json.dumps(arguments)}
            call = {"id": f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
            yield ModelResponse(role="assistant", tool_calls=[call])

    def invoke(self, *args, **kwargs):
        raise NotImplementedError("the script is only streamed")

    ainvoke = invoke_stream = invoke

    def _parse_provider_response(self, response, **kwargs):
        return response

    def _parse_provider_response_delta(self, response):
        return response


async def effect(run: str, call: int) -> str:
    """Have the side effect that is counted."""
    return await asyncio.to_thread(script.effect, run, call)


db = SqliteDb(db_file=os.path.join(os.environ["CHAOS_DATA"], "agno.sqlite"))
agent = Agent(id="chaos", model=Scripted(), db=db, tools=[effect], telemetry=False)
app = AgentOS(id="chaos", agents=[agent], db=db, telemetry=False).get_app()
