"""The settings of the connector."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import Settings


class ConnectorSettings(Settings):
    """The settings that only the connector has; each is read from `PENSTOCK_<NAME>`."""

    max_legs: int = Field(
        1000,
        ge=1,
        description="The number of upstream connections that are open at once. Further starts "
        "wait.",
    )
    max_waiting_starts: int = Field(
        500,
        ge=0,
        description="The number of starts that are fetched while all legs are taken, so that "
        "users take turns. 0 means first come, first served.",
    )
    connect_timeout_s: float = Field(10.0, gt=0, description="Seconds to reach an agent server.")
    cancel_grace_s: float = Field(
        8.0,
        ge=0,
        description="Seconds that a cancelled upstream has to end by itself. Then the connector "
        "closes the connection.",
    )
    max_buffered_bytes: int = Field(
        4 * 1024 * 1024,
        ge=1,
        description="Bytes per leg that are read from the upstream and not yet stored.",
    )
    max_total_buffered_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1,
        description="The same for all legs of the process. One leg never takes more than it "
        "leaves to the others.",
    )
    max_frame_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="The largest upstream frame in bytes. A larger one ends its run with code "
        "`limit`.",
    )
    max_response_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=1024,
        description="The largest upstream response in bytes. A larger one ends its run with code "
        "`limit`.",
    )
    max_total_frame_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=1,
        description="Bytes of all unfinished frames over 1 MiB in the process. A frame that takes"
        " more than it leaves to the others ends its run with code `limit`.",
    )
    pod_ttl_s: float = Field(
        15.0,
        ge=1,
        description="Seconds after which a connector that hangs, or lost its network, loses its "
        "lease and its runs. A killed connector is found earlier.",
    )
    pod_renew_s: float = Field(
        3.0, gt=0, description="Seconds between two renewals of the connector's lease."
    )
    ack_wait_s: float = Field(
        12.0,
        ge=1,
        description="Seconds after which another connector gets a command that a connector took "
        "and did not begin.",
    )
    reap_s: float = Field(
        4.0,
        gt=0,
        description="Seconds between two searches for runs whose connector lost its lease.",
    )
    watch_s: float = Field(
        30.0,
        gt=0,
        description="Seconds between two searches, by one of the connectors, for open runs that "
        "nobody works on.",
    )
