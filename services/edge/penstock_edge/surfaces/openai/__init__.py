"""The surface for OpenAI's clients, for agents of every protocol: each agent is a model."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.web.operation import TEXT, Operation, a_list, an_object, in_path, json, serves
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.openai.chat import Chat
from penstock_edge.surfaces.openai.request import ERRORS
from penstock_edge.surfaces.openai.responses import Responses
from penstock_edge.surfaces.openai.runs import Runs
from penstock_edge.surfaces.surface import Surface

_MODEL: Final = an_object(id=TEXT, object=TEXT, owned_by=TEXT)
_read: Final = partial(Operation, method="GET", tag="openai", scopes=("read",), errors=ERRORS)


class Models(Runs):
    """Has the handlers of models."""

    @serves(
        _read(
            path="/openai/v1/models",
            summary="Every agent, as a model",
            answers={200: json("The models", an_object(object=TEXT, data=a_list(_MODEL)))},
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        models = [_shown(agent.id) for agent in self._edge.config.agents]
        return json_response({"object": "list", "data": models})

    @serves(
        _read(
            path="/openai/v1/models/{model}",
            summary="One agent, as a model",
            answers={200: json("The model", _MODEL)},
            parameters=(in_path("model", "The agent's id"),),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        return json_response(_shown(self.agent(request.path_params["model"]).id))


def _shown(agent_id: str) -> dict[str, Any]:
    return {"id": agent_id, "object": "model", "created": 0, "owned_by": "penstock"}


class OpenAI(Surface):
    """Has the handlers of models, completions and responses."""

    handlers = (Models, Chat, Responses)
