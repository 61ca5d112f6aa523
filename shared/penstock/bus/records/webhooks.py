"""Core requests to the service automations, which calls servers outside for other services."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from penstock.bus.records.base import Record


class Push(Record):
    """Where somebody is told of the changes of a run, as A2A's push notifications."""

    id: str = Field(description="Unique among the pushes of its run")
    url: str
    token: str | None = Field(None, description="For the header `X-A2A-Notification-Token`")
    scheme: str | None = Field(None, description="The scheme of the header `Authorization`")
    credentials: str | None = None


class PushRequest(Record):
    """Core request `push.<run id>`: add or remove pushes of a run, whose user it names with the
    rights of the user's token. The edge has checked that the run is the user's."""

    user_id: str
    tenant: str = ""
    roles: list[str] = Field([])
    scopes: list[str] = Field([])
    add: Push | None = None
    remove: str | None = Field(None, description="The id of a push")


class PushReply(Record):
    """The answer to a PushRequest: `pushes` are those of the run after it, without secrets.
    `status` is an HTTP status."""

    status: int
    detail: str = ""
    pushes: list[Push] = Field([])


class CheckRequest(Record):
    """Core request `check.<run id>`: have texts of a run checked by a server of the operator's, for
    the run's user. `secret` is the name of a secret of calls."""

    url: str
    body: dict[str, Any]
    timeout_s: float
    secret: str | None = None
    user_id: str = ""
    tenant: str = ""


class CheckReply(Record):
    """The answer to a CheckRequest: the JSON that the server has answered, or why there is none."""

    answer: Any = None
    error: str | None = None
