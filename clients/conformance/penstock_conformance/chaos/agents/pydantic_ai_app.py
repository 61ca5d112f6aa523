"""A scripted agent behind pydantic-ai's AG-UI adapter: `uvicorn pydantic_ai_app:app`, /agui."""

import asyncio
import json

import script
from fastapi import FastAPI, Request
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.ui.ag_ui import AGUIAdapter


async def play(messages, info):
    """Play the script in place of a language model."""
    parts = [part for each in messages if isinstance(each, ModelRequest) for part in each.parts]
    message = [str(part.content) for part in parts if isinstance(part, UserPromptPart)][-1]
    calls_made = sum(isinstance(part, ToolReturnPart) for part in parts)
    for word in script.words(calls_made):
        await asyncio.sleep(script.PAUSE_S)
        yield word
    arguments = script.next_call(message, calls_made)
    if arguments is not None:
        call = f"call_{calls_made}"
        yield {0: DeltaToolCall(name="effect", json_args=json.dumps(arguments), tool_call_id=call)}


agent = Agent(FunctionModel(stream_function=play))


@agent.tool_plain
async def effect(run: str, call: int) -> str:
    """Have the side effect that is counted."""
    return await asyncio.to_thread(script.effect, run, call)


app = FastAPI()


@app.post("/agui")
async def agui(request: Request):
    return await AGUIAdapter.dispatch_request(request, agent=agent)
