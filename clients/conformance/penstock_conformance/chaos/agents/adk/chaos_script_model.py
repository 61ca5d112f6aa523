"""The scripted model and the tool of both ADK apps."""

import asyncio

import script
from google.adk.models.base_llm import BaseLlm
from google.adk.utils.streaming_utils import StreamingResponseAggregator
from google.genai.types import Candidate, Content, FunctionCall, GenerateContentResponse, Part


class Scripted(BaseLlm):
    """Plays the script in place of a language model, in pieces as ADK's own Gemini model does."""

    model: str = "script"

    async def generate_content_async(self, llm_request, stream=False):
        message, calls_made = "", 0
        for content in llm_request.contents:
            for part in content.parts or []:
                if part.function_response:
                    calls_made += 1
                elif part.text and content.role == "user":
                    message, calls_made = part.text, 0
        parts = [Part(text=word) for word in script.words(calls_made)]
        arguments = script.next_call(message, calls_made)
        if arguments is not None:
            parts.append(Part(function_call=FunctionCall(name="effect", args=arguments)))
        aggregator = StreamingResponseAggregator()
        for number, part in enumerate(parts, 1):
            await asyncio.sleep(script.PAUSE_S)
            content = Content(role="model", parts=[part])
            finish = "STOP" if number == len(parts) else None
            chunk = GenerateContentResponse(
                candidates=[Candidate(content=content, finish_reason=finish)]
            )
            async for response in aggregator.process_response(chunk):
                yield response
        if (last := aggregator.close()) is not None:
            yield last


async def effect(run: str, call: int) -> dict:
    """Have the side effect that is counted."""
    return {"done": await asyncio.to_thread(script.effect, run, call)}
