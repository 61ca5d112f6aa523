"""A scripted agent behind pydantic-ai's AG-UI adapter: `uvicorn pydantic_ai_app:app`, /agui."""

import asyncio
import json

import script
from fastapi import FastAPI, Request
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.ui.ag_ui import AGUIAdapter


async def play(messages, info):
    """Play the script in place of a language model."""
    message, results = "", []
    for part in (
        part for each in messages if isinstance(each, ModelRequest) for part in each.parts
    ):
        if isinstance(part, UserPromptPart):
            message, results = str(part.content), []
        elif isinstance(part, ToolReturnPart):
            results.append(str(part.content))
    async for kind, value in script.play(message, results):
        if kind == "say":
            yield value
        elif kind == "think":
            yield {0: DeltaThinkingPart(content=value)}
        else:
            name, arguments = value
            id = f"call_{len(messages)}"
            yield {0: DeltaToolCall(name=name, json_args=json.dumps(arguments), tool_call_id=id)}


agent = Agent(FunctionModel(stream_function=play), output_type=[str, DeferredToolRequests])
agent.tool_plain(script.lookup)
agent.tool_plain(requires_approval=True)(script.guarded)


@agent.tool_plain
async def effect(run: str, call: int) -> str:
    """Have the side effect that is counted."""
    return await asyncio.to_thread(script.effect, run, call)


app = FastAPI()


@app.post("/agui")
async def agui(request: Request):
    return await AGUIAdapter.dispatch_request(request, agent=agent)
