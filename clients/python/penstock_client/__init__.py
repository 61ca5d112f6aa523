"""A typed client of Penstock. It reconnects by itself, and misses and repeats no event.

with Client(token="…") as client:
    for event in client.run("assistant", "Hello"):
        print(event)
"""

from __future__ import annotations

from penstock_client.async_client import AsyncClient, AsyncRun
from penstock_client.calls import DEFAULT_URL, AsyncToken, Token
from penstock_client.client import Client, Run
from penstock_client.errors import (
    ApiError,
    CursorGone,
    DeadlineReached,
    PenstockError,
    Unreachable,
)
from penstock_client.following import Notice
from penstock_client.models import ApprovalRecord, RunRecord
from penstock_client.requests import ItemDecision, Request, StartOptions, path_of

__all__ = [
    "DEFAULT_URL",
    "ApiError",
    "ApprovalRecord",
    "AsyncClient",
    "AsyncRun",
    "AsyncToken",
    "Client",
    "CursorGone",
    "DeadlineReached",
    "ItemDecision",
    "Notice",
    "PenstockError",
    "Request",
    "Run",
    "RunRecord",
    "StartOptions",
    "Token",
    "Unreachable",
    "path_of",
]
