"""The settings of the edge, from the environment."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from penstock.runs.settings import StartSettings

_YES = frozenset({"true", "1", "yes", "on"})


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in _YES


class EdgeSettings(StartSettings):
    """The settings of the edge. The environment variable of each setting is `PENSTOCK_<NAME>`. Only
    `ENABLE_ADK_CANONICAL_STREAM` has another name, which adk-streaming.md prescribes."""

    model_config = SettingsConfigDict(populate_by_name=True)

    enable_adk_canonical_stream: Annotated[bool, BeforeValidator(_flag)] = Field(
        False,
        validation_alias="ENABLE_ADK_CANONICAL_STREAM",
        description="`true`, `1`, `yes` or `on` serves `POST /run_sse` and `POST /run`. Otherwise"
        " they answer 501.",
    )
    keep_alive_s: float = Field(
        15.0,
        gt=0,
        description="Seconds after which a silent stream gets a keep-alive (not `/run_sse` and"
        " `/run`).",
    )
    max_body_bytes: int = Field(
        10 * 1024 * 1024,
        gt=0,
        description="The largest request body in bytes. A larger one is answered with 413.",
    )
    max_pending_bytes: int = Field(
        1024 * 1024,
        gt=0,
        description="Bytes by which a client that does not read may be behind before the edge "
        "drops it.",
    )
    ring_bytes: int = Field(
        4 * 1024 * 1024,
        gt=0,
        description="Bytes of recent frames that are kept for each followed run and dialect.",
    )
    max_ring_bytes: int = Field(
        256 * 1024 * 1024,
        gt=0,
        description="Bytes of all these frames in the process. Beyond it, the edge drops frames of"
        " the longest silent runs first.",
    )
    write_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds that a client has to take one write (256 KiB, or one frame) before "
        "the edge drops it.",
    )
    max_streams: int = Field(
        12_000,
        gt=0,
        description="The number of streams that are open in this process. A further one is "
        "answered with 503. The limit is lower where the process may not open so many"
        " files.",
    )
    max_connection_age_s: float = Field(
        3600.0,
        ge=0,
        description="Seconds after which a stream that can be resumed is ended; the edge picks a "
        "moment between 80 and 100 % of it. 0 means never.",
    )
    page_events: int = Field(
        5000,
        gt=0,
        description="The number of events that the edge reads to fill a page. Then it returns the"
        " page as it is.",
    )
    page_bytes: int = Field(
        8 * 1024 * 1024, gt=0, description="The bytes that the edge reads, or returns, for a page."
    )
    page_s: float = Field(2.0, gt=0, description="The seconds that the edge reads for a page.")
    hub_grace_s: float = Field(
        5.0, ge=0, description="Seconds for which a run is followed after its last client has left."
    )
    cursor_settle_s: float = Field(
        10.0,
        ge=0,
        description="Seconds after which an event that was written to a client with a saved cursor "
        "counts as received. A client that restarts gets the events of these seconds once more.",
    )
    cancel_wait_s: float = Field(
        10.0,
        gt=0,
        description="Seconds that a cancel waits for a connector before the edge ends the run "
        "itself.",
    )
    trace_url: str | None = Field(
        None,
        pattern=r"^https?://\S*\{trace_id\}\S*$",
        description="Where a trace is shown, with `{trace_id}` in place of its id. "
        "`GET /v1/runs/{id}` and the console then have a link to a run's trace.",
    )

    @model_validator(mode="after")
    def _people_can_come_back(self) -> EdgeSettings:
        if self.auth.oidc_issuer is not None and self.auth.public_url is None:
            raise ValueError(
                "PENSTOCK_OIDC_ISSUER is set: set PENSTOCK_PUBLIC_URL, too, to the address to "
                "which the provider sends people back"
            )
        return self
