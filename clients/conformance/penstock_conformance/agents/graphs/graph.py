"""A scripted graph for LangGraph's servers: a model and a tool in a loop, as in a ReAct agent."""

import asyncio
import json
import uuid
from typing import Annotated

import script
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict

TOOLS = {each.__name__: each for each in (script.lookup, script.guarded, script.effect)}
SCHEMA = {"responseSchema": {"type": "object", "properties": {"approved": {"type": "boolean"}}}}


class Scripted(BaseChatModel):
    """Plays the script in place of a language model."""

    @property
    def _llm_type(self):
        return "script"

    def _generate(self, *args, **kwargs):
        raise NotImplementedError("this script only streams: ask the server for a stream")

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        asked = max(index for index, message in enumerate(messages) if message.type == "human")
        results = [str(each.content) for each in messages[asked + 1 :] if each.type == "tool"]
        async for kind, value in script.play(str(messages[asked].content), results):
            if kind == "say":
                message = AIMessageChunk(content=value)
            elif kind == "think":
                message = AIMessageChunk(content="", additional_kwargs={"reasoning_content": value})
            else:
                name, arguments = value
                id = f"call_{uuid.uuid4().hex[:12]}"
                call = {"name": name, "args": json.dumps(arguments), "id": id, "index": 0}
                message = AIMessageChunk(content="", tool_call_chunks=[call])
            yield ChatGenerationChunk(message=message)


class State(TypedDict):
    """What the graph keeps."""

    messages: Annotated[list[BaseMessage], add_messages]


async def model(state: State):
    whole = None
    async for chunk in Scripted().astream(state["messages"]):
        whole = chunk if whole is None else whole + chunk
    return {"messages": [whole]}


async def tool(state: State):
    [call] = state["messages"][-1].tool_calls
    answer = {"approved": True}
    if call["name"] == "guarded":
        answer = interrupt({"reason": "tool_call", "toolCallId": call["id"], **SCHEMA})
    if isinstance(answer, dict) and answer.get("approved") is True:
        result = await asyncio.to_thread(TOOLS[call["name"]], **call["args"])
    else:
        result = "The user said no."
    return {"messages": [ToolMessage(content=result, tool_call_id=call["id"])]}


def goes_on(state: State):
    return "tool" if state["messages"][-1].tool_calls else END


builder = StateGraph(State)
builder.add_node("model", model)
builder.add_node("tool", tool)
builder.add_edge(START, "model")
builder.add_conditional_edges("model", goes_on, ["tool", END])
builder.add_edge("tool", "model")
graph = builder.compile()
