"""The settings that only the normalizer has."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from penstock.settings import Settings


class NormalizerSettings(Settings):
    """Each field is read from the environment variable `PENSTOCK_<NAME>`."""

    # `partition_ttl_s` is longer than an election in NATS, because no lease can be renewed during
    # an election.
    partition_ttl_s: float = Field(
        12.0,
        ge=1,
        description="Seconds after which the partitions of a normalizer that hangs go to the "
        "others. Those of a killed one go within a few seconds.",
    )
    prices: Path | None = Field(
        None,
        description="A YAML file with prices of models, which go before public prices. A change "
        "is in force within 5 seconds.",
    )
    partition_renew_s: float = Field(
        2.0, gt=0, description="Seconds between two renewals of the leases on the partitions."
    )
    checkpoint_s: float = Field(
        1.0,
        gt=0,
        description="Seconds between two checkpoints; five times as many while fewer than "
        "500 frames have come.",
    )
    max_held_bytes: int = Field(
        128 * 1024 * 1024,
        ge=1,
        description="Bytes of source frames in memory, for all runs of the process; a frame "
        "counts 1 KiB more than its size. One run never takes more than it leaves to "
        "the others.",
    )
    max_frame_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="The largest upstream frame in bytes. A larger one ends its run with code "
        "`limit`.",
    )
    max_blocked_s: float = Field(
        300.0,
        gt=0,
        description="Seconds for which a blocked run is tried again before it is ended.",
    )
    run_idle_s: float = Field(
        60.0,
        gt=0,
        description="Seconds without frames after which a run's state leaves memory. A run that "
        "has ended leaves after 10 s.",
    )
