"""The settings of the approvals service."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import Settings


class ApprovalsSettings(Settings):
    """From the environment, as `PENSTOCK_<NAME>`."""

    outbox_s: float = Field(
        2.0,
        gt=0,
        description="Seconds between two searches for decisions whose process ended before it "
        "sent them on.",
    )
    ack_wait_s: float = Field(
        3.0,
        ge=1,
        description="Seconds after which another instance gets a request that an ended instance "
        "had taken and not recorded.",
    )
