"""Keeps the current policy.

The policy comes from KV `policies`, else from a file. Without both, the built-in policy is used.

A policy with a mistake is refused, and the previous policy stays in force. At the start there is no
previous policy. So if the file has a mistake, the service does not start. If the record in KV has a
mistake, the service handles no request. If the service used the built-in policy instead, a
requester could decide an approval that the intended policy forbids.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict

from penstock import telemetry
from penstock.bus import Bus, Retry, Stored
from penstock.bus.connection.retry import until_answered
from penstock.bus.read.reader import Reader
from penstock.settings import ConfigurationError
from penstock_approvals.policy.document import InvalidPolicy, from_value, parse
from penstock_approvals.policy.model import Source
from penstock_approvals.policy.rulings import Policy

log = logging.getLogger(__name__)

BUCKET, KEY = "policies", "current"
CHECK_S: Final = 2.0  # seconds between two checks whether the file has changed
RETRY_S: Final = 1.0


class StoredPolicy(BaseModel):
    """The record in KV `policies`, under the key `current`; `by` has stored the policy."""

    model_config = ConfigDict(extra="allow")

    policy: dict[str, Any]
    by: str
    at: str


class VersionConflict(Exception):
    """The error for a new policy whose version is not higher than the current one's."""


class Policies:
    """Keeps the current policy up to date. `refused` maps each source to the reason why the
    source's newest policy was refused."""

    def __init__(self, bus: Bus, path: Path | None = None) -> None:
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._path = path
        self._text: str | None = None  # the content of the file at the last read
        self._read: dict[Source, Policy] = {}
        self.stored: StoredPolicy | None = None  # None if the policy does not come from KV
        self._has_record = False
        self.refused: dict[str, str] = {}

    @property
    def current(self) -> Policy:
        """The current policy. Raises Retry if the record has a mistake, and none was before."""
        if "kv" in self._read:
            return self._read["kv"]
        if self._has_record:
            raise Retry(RETRY_S)
        return self._read.get("file") or _BUILTIN

    async def load(self) -> None:
        """Read the policy from the file and from KV; wait until the NATS server answers. Raises
        ConfigurationError if the file cannot be read, or has a mistake."""
        if self._path is not None:
            try:
                self._text = self._path.read_text()
                self._take(parse(self._text))
            except (OSError, UnicodeDecodeError, InvalidPolicy) as error:
                raise ConfigurationError(f"the policy {self._path}: {error}") from None
        await until_answered("reading the policy", self._read_record)

    async def follow(self) -> None:
        await Reader(self._bus, f"KV_{BUCKET}", f"$KV.{BUCKET}.{KEY}", 1, self._read_record).run()

    async def watch_file(self) -> None:
        while self._path is not None:
            await asyncio.sleep(CHECK_S)
            try:
                text = await asyncio.to_thread(self._path.read_text)
                if text != self._text or "file" in self.refused:
                    self._text = text
                    self._take(parse(text))
            except (OSError, UnicodeDecodeError, InvalidPolicy) as error:
                self._refuse("file", str(error))

    async def apply(self, value: Any, by: str) -> Policy:
        """Store a new policy.

        Raises:
            InvalidPolicy: the policy has a mistake; nothing has changed.
            VersionConflict: also if another policy was stored at the same time.
            BusError: the policy was not stored, or it is unknown whether it was stored.
        """
        policy = from_value(value, "kv")
        entry = await self._bucket.get(KEY)
        known = _version(entry.value) if entry is not None else self.current.version
        if policy.version <= known:
            raise VersionConflict(
                f"the current policy has the version {known}; read it again, make your change to "
                f"it, and give it the version {known + 1}"
            )
        content = policy.document.model_dump(mode="json", by_alias=True, exclude_unset=True)
        stored = StoredPolicy(policy=content, by=by, at=self._bus.clock.stamp())
        revision = entry.revision if entry is not None else 0
        if await self._bucket.update(KEY, stored.model_dump_json().encode(), revision) is None:
            raise VersionConflict("another policy was stored at the same moment; read it again")
        await self._read_record()
        return policy

    async def _read_record(self, _: Stored | None = None) -> None:
        entry = await self._bucket.get(KEY)
        self._has_record = entry is not None and bool(entry.value)
        if entry is None or not entry.value:
            self.stored = None
            if self._read.pop("kv", None) is not None:
                log.warning(
                    "the record of the policy was deleted; the policy of the file applies, or the "
                    "built-in policy"
                )
            self.refused.pop("kv", None)
            return
        try:
            stored = StoredPolicy.model_validate_json(entry.value)
            self._take(from_value(stored.policy, "kv"))
            self.stored = stored
        except ValueError as error:
            self._refuse("kv", str(error))

    def _take(self, policy: Policy) -> None:
        before = self._read.get(policy.source)
        self._read[policy.source] = policy
        self.refused.pop(policy.source, None)
        if before is None or before.digest != policy.digest:
            log.info("policy %d (%s) was read: %s", policy.version, policy.source, policy.digest)
        if policy.source == "kv" or not self._has_record:
            telemetry.POLICY_VERSION.set(policy.version)

    def _refuse(self, source: Source, reason: str) -> None:
        if self.refused.get(source) != reason:
            self.refused[source] = reason
            telemetry.POLICIES_REFUSED.labels(source).inc()
            log.error("the new policy (%s) is refused; the previous one stays: %s", source, reason)


_BUILTIN: Final = Policy()


def _version(value: bytes | None) -> int:
    """Return the version of a stored policy; 0, which any policy replaces, if it is unreadable."""
    try:
        return int(orjson.loads(value or b"{}")["policy"]["version"])
    except (ValueError, LookupError, TypeError):
        return 0
