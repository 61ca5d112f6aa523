"""The service's own knobs."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import Settings


class ApprovalsSettings(Settings):
    """From the environment, as `PENSTOCK_<NAME>`."""

    outbox_s: float = Field(
        2.0, gt=0, description="How often decisions are looked for that were not sent on yet"
    )
    ack_wait_s: float = Field(
        3.0, ge=1, description="After it a request that a dead instance had taken goes to another"
    )
