"""The scripted model and the tools of both ADK apps."""

import asyncio

import script
from google.adk.models.base_llm import BaseLlm
from google.adk.tools import FunctionTool
from google.adk.utils.streaming_utils import StreamingResponseAggregator
from google.genai.types import Candidate, Content, FunctionCall, GenerateContentResponse, Part


class Scripted(BaseLlm):
    """Plays the script in place of a language model, in pieces as ADK's own Gemini model does."""

    model: str = "script"

    async def generate_content_async(self, llm_request, stream=False):
        message, results = "", []
        for content in llm_request.contents:
            for part in content.parts or []:
                if part.function_response:
                    results.append(str(part.function_response.response))
                elif part.text and content.role == "user":
                    message, results = part.text, []
        aggregator, before = StreamingResponseAggregator(), None
        async for step in script.play(message, results):
            if before is not None:
                async for response in aggregator.process_response(_chunk(before, None)):
                    yield response
            before = _part(*step)
        async for response in aggregator.process_response(_chunk(before, "STOP")):
            yield response
        if (last := aggregator.close()) is not None:
            yield last


def _part(kind, value):
    if kind == "call":
        name, arguments = value
        return Part(function_call=FunctionCall(name=name, args=arguments))
    return Part(text=value, thought=True if kind == "think" else None)


def _chunk(part, finish):
    content = Content(role="model", parts=[part])
    return GenerateContentResponse(candidates=[Candidate(content=content, finish_reason=finish)])


async def effect(run: str, call: int) -> dict:
    """Have the side effect that is counted."""
    return {"done": await asyncio.to_thread(script.effect, run, call)}


tools = [script.lookup, FunctionTool(script.guarded, require_confirmation=True), effect]
