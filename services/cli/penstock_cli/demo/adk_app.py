"""The demo ADK server: real ADK, with a scripted model. This module runs in ADK's environment.

The environment variable DEMO_DATA names the folder in which the server stores its sessions.
"""

# Penstock's type checks run in an environment without ADK.
# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.cli.utils.base_agent_loader import BaseAgentLoader
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool
from google.adk.utils.streaming_utils import StreamingResponseAggregator
from google.genai.types import Candidate, Content, FunctionCall, GenerateContentResponse, Part
from script import FREE_TOOLS, Call, Fail, Say, Step, Think, delete_file, steps


class ScriptedModel(BaseLlm):
    """Plays the script in place of a language model."""

    model: str = "script"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the model's turn: with `stream` in pieces, as ADK's own Gemini model does,
        otherwise as one response."""
        turn = list(_turn(llm_request))
        if not stream:
            yield LlmResponse.create(_chunk(*map(_part, turn), finish="STOP"))
            return
        aggregator = StreamingResponseAggregator()
        for number, step in enumerate(turn, 1):
            await asyncio.sleep(step.pause_s if isinstance(step, Say) else 0)
            chunk = _chunk(_part(step), finish="STOP" if number == len(turn) else None)
            async for response in aggregator.process_response(chunk):
                yield response
        if last := aggregator.close():
            yield last


def _turn(request: LlmRequest) -> Iterator[Step]:
    message, results = "", []
    for content in request.contents:
        for part in content.parts or []:
            if part.function_response:
                results.append(json.dumps(part.function_response.response, default=str))
            elif part.text and content.role == "user":
                message, results = part.text, []
    return steps(message, results)


def _part(step: Step) -> Part:
    match step:
        case Think(text):
            return Part(text=text, thought=True)
        case Say(text):
            return Part(text=text)
        case Call(name, args):
            return Part(function_call=FunctionCall(name=name, args=args))
        case Fail(error):
            raise RuntimeError(error)


def _chunk(*parts: Part, finish: str | None = None) -> GenerateContentResponse:
    content = Content(role="model", parts=list(parts))
    return GenerateContentResponse(candidates=[Candidate(content=content, finish_reason=finish)])


def _agent(name: str) -> LlmAgent:
    return LlmAgent(
        name=name,
        description="A demo agent.",
        model=ScriptedModel(),
        instruction="Answer by the script.",
        tools=[*FREE_TOOLS, FunctionTool(delete_file, require_confirmation=True)],
    )


class _Apps(BaseAgentLoader):
    """The apps of the server, by the names of their agents."""

    def __init__(self) -> None:
        self._agents = {name: _agent(name) for name in ("scanner", "team_supervisor", "vana")}

    def list_agents(self) -> list[str]:
        return list(self._agents)

    def load_agent(self, agent_name: str) -> LlmAgent:
        if agent_name not in self._agents:
            raise ValueError(f"there is no app {agent_name}")
        return self._agents[agent_name]


app = get_fast_api_app(
    agents_dir=str(Path(__file__).parent),
    agent_loader=_Apps(),
    # Sessions must survive a restart of the server, because Penstock keeps runs that wait for an
    # approval, and such runs need their sessions.
    session_service_uri=f"sqlite:///{Path(os.environ['DEMO_DATA']).absolute() / 'adk.sqlite'}",
    artifact_service_uri="memory://",
    memory_service_uri="memory://",
    use_local_storage=False,
    web=False,
)
