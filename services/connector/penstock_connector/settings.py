"""The connector's own knobs."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import Settings


class ConnectorSettings(Settings):
    """From the environment, as `PENSTOCK_<NAME>`."""

    max_legs: int = Field(1000, ge=1, description="Upstream connections held at once")
    max_waiting_starts: int = Field(
        500, ge=0, description="Fetched while all legs are taken, so that users take turns; 0: none"
    )
    connect_timeout_s: float = Field(10.0, gt=0, description="For reaching an agent server")
    cancel_grace_s: float = Field(
        8.0, ge=0, description="How long a cancelled upstream may take to end by itself"
    )
    max_buffered_bytes: int = Field(
        4 * 1024 * 1024, ge=1, description="Read from an upstream and not yet stored, a leg"
    )
    max_total_buffered_bytes: int = Field(
        256 * 1024 * 1024, ge=1, description="The same of all legs; none gets more than is left"
    )
    max_frame_bytes: int = Field(64 * 1024 * 1024, ge=1024, description="Of one upstream frame")
    max_response_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=1024,
        description="Of one upstream response",
    )
    max_total_frame_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=1,
        description="Of the unfinished frames over 1 MiB of all legs; none gets more than is left",
    )
    pod_ttl_s: float = Field(15.0, ge=1, description="After it a dead connector's runs are ended")
    pod_renew_s: float = Field(3.0, gt=0, description="How often the connector says it lives")
    ack_wait_s: float = Field(
        12.0, ge=1, description="After it a command that a dead connector had taken goes to another"
    )
    reap_s: float = Field(4.0, gt=0, description="How often runs of dead connectors are looked for")
    watch_s: float = Field(
        30.0, gt=0, description="How often one connector looks for runs that nobody would move"
    )
