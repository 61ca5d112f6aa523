"""Models of the request bodies of executions-sse.md. Pure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from penstock_edge.surfaces.bodies import Message


class TriggerRequest(BaseModel):
    """The body of a trigger. `topologyId` must be an integer in JSON, not a text with digits."""

    model_config = ConfigDict(strict=True, extra="allow")

    topology_id: int = Field(alias="topologyId")
    user_message: Message = Field(alias="userMessage")


class CancelRequest(BaseModel):
    """The body of a cancel."""

    model_config = ConfigDict(strict=True)

    run_id: str = Field(alias="runId", min_length=1)
