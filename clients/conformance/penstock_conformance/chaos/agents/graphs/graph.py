"""A scripted graph for LangGraph's servers: a model and a tool in a loop, as in a ReAct agent."""

import asyncio
import json
from typing import Annotated, TypedDict

import script
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


class Scripted(BaseChatModel):
    """Plays the script in place of a language model."""

    @property
    def _llm_type(self):
        return "script"

    def _generate(self, *args, **kwargs):
        raise NotImplementedError("the script is only streamed")

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        asked = max(index for index, message in enumerate(messages) if message.type == "human")
        calls_made = sum(message.type == "tool" for message in messages[asked + 1 :])
        for word in script.words(calls_made):
            await asyncio.sleep(script.PAUSE_S)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        arguments = script.next_call(str(messages[asked].content), calls_made)
        if arguments is not None:
            call = {"name": "effect", "args": json.dumps(arguments), "id": f"call_{calls_made}"}
            chunk = AIMessageChunk(content="", tool_call_chunks=[{**call, "index": 0}])
            yield ChatGenerationChunk(message=chunk)


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
    result = await asyncio.to_thread(script.effect, **call["args"])
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
