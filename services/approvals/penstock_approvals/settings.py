"""The settings of the approvals service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from penstock.settings import Settings


class ApprovalsSettings(Settings):
    """The settings of the approvals service, read from the environment as `PENSTOCK_<NAME>`."""

    outbox_s: float = Field(
        2.0,
        gt=0,
        description="Seconds between two searches for decisions whose process ended before it "
        "sent them on.",
    )
    policy: Path | None = Field(
        None,
        description="The path of a YAML file with the approvals policy. A policy that was stored "
        "over HTTP replaces it.",
    )
    require_digest: bool = Field(
        True,
        description="Whether people must send the digest of what they were shown, over `/v1`, "
        "links and pages. The protocols of upstreams cannot carry it.",
    )
    ack_wait_s: float = Field(
        3.0,
        ge=1,
        description="Seconds after which another instance gets a request that an ended instance "
        "had taken and not recorded.",
    )
    audit_details: bool = Field(
        False,
        description="Whether the audit has the arguments, values and notes themselves, except "
        "credentials. Without this, it has their digests only.",
    )
    audit_key: str | None = Field(
        None,
        repr=False,
        description="The key that signs the audit's anchors. Several keys, with commas between "
        "them: the first one signs, the others verify older anchors.",
    )

    @property
    def audit_keys(self) -> tuple[bytes, ...]:
        """The keys for the audit's anchors. The first key signs new anchors."""
        return keys_of(self.audit_key)


def keys_of(setting: str | None) -> tuple[bytes, ...]:
    return tuple(key.strip().encode() for key in (setting or "").split(",") if key.strip())
