"""What the edge takes from the environment."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_settings import SettingsConfigDict

from penstock.settings import Settings

_YES = frozenset({"true", "1", "yes", "on"})


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in _YES


class EdgeSettings(Settings):
    """`PENSTOCK_<NAME>`, but for the flag, which has the name that its contract gives it."""

    model_config = SettingsConfigDict(populate_by_name=True)

    enable_adk_canonical_stream: Annotated[bool, BeforeValidator(_flag)] = Field(
        False,
        validation_alias="ENABLE_ADK_CANONICAL_STREAM",
        description="`true`, `1`, `yes` or `on`: POST /run_sse and /run are served, else 501",
    )
    keep_alive_s: float = Field(15.0, gt=0, description="No stream is silent for longer")
    max_body_bytes: int = Field(10 * 1024 * 1024, gt=0, description="The largest request body")
    max_pending_bytes: int = Field(
        1024 * 1024,
        gt=0,
        description="Who is further behind and does not read is dropped",
    )
    ring_bytes: int = Field(
        4 * 1024 * 1024, gt=0, description="Recent frames kept for each followed run and dialect"
    )
    max_ring_bytes: int = Field(
        256 * 1024 * 1024, gt=0, description="All rings together; the longest silent are emptied"
    )
    write_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Who has not taken one write, 256 KiB or a frame, by then is dropped",
    )
    max_streams: int = Field(
        12_000, gt=0, description="Open at a time in this process; beyond it 503"
    )
    max_connection_age_s: float = Field(
        3600.0,
        ge=0,
        description="A stream that can be resumed is ended at this age, at the latest; 0 never",
    )
    max_open_runs_per_user: int = Field(
        500, ge=0, description="Queued or under way, of a user, in the installation; 0: any number"
    )
    max_queued_runs_per_user: int = Field(
        200, ge=0, description="Of these, not yet taken by a connector; 0: any number"
    )
    page_events: int = Field(
        5000, gt=0, description="Events that a page is looked for in; then it is given as it is"
    )
    page_bytes: int = Field(8 * 1024 * 1024, gt=0, description="The same in bytes, read and given")
    page_s: float = Field(2.0, gt=0, description="The same in seconds")
    hub_grace_s: float = Field(
        5.0, ge=0, description="How long a run is followed after its last client left"
    )
    cancel_wait_s: float = Field(
        10.0, gt=0, description="How long a cancel waits before the edge ends the run itself"
    )
