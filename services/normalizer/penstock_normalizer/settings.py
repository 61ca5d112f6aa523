"""The normalizer's own knobs."""

from __future__ import annotations

from pydantic import Field

from penstock.settings import Settings


class NormalizerSettings(Settings):
    """From the environment, as `PENSTOCK_<NAME>`."""

    # longer than an election of the broker takes, in which nobody can renew
    partition_ttl_s: float = Field(
        12.0, ge=1, description="After it the partitions of one that hangs move"
    )
    partition_renew_s: float = Field(2.0, gt=0, description="How often a partition is renewed")
    checkpoint_s: float = Field(1.0, gt=0, description="How often the progress is written down")
    max_held_bytes: int = Field(
        128 * 1024 * 1024,
        ge=1,
        description="Source frames in memory, of all runs; none gets more than is left",
    )
    max_frame_bytes: int = Field(64 * 1024 * 1024, ge=1024, description="Of one upstream frame")
    max_standing_s: float = Field(
        300.0, gt=0, description="A run that cannot be worked on for so long is ended"
    )
    run_idle_s: float = Field(60.0, gt=0, description="After it a run's state leaves memory")
