"""Models of the request bodies of Penstock's own API. Pure."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from penstock_edge.surfaces.bodies import Message

Key = Annotated[str, Field(min_length=1, max_length=256)]
Id = Annotated[str, Field(min_length=1, max_length=512)]


class StartRequest(BaseModel):
    """The body of POST /v1/runs. Naming another user in `user_id` requires the scope `act-as`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    agent: str
    message: Message
    session_id: Id | None = None
    user_id: Id | None = None
    input: dict[str, Any] | None = None
    idempotency_key: Key | None = None
