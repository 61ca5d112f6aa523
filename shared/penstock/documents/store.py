"""Keeps a document up to date: the one in KV `policies`, else the one of a file, else the built-in
one.

A document with a mistake is refused, and the previous one stays in force. At the start there is no
previous one. So if the file has a mistake, the service does not start. If the record in KV has a
mistake, `current` raises an error. If the built-in document was used instead, it could allow what
the intended document forbids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict

from penstock import telemetry
from penstock.bus import Bus, Retry, Stored
from penstock.bus.connection.retry import until_answered
from penstock.bus.read.reader import Reader
from penstock.documents.reading import InvalidDocument, value_of
from penstock.settings import ConfigurationError
from penstock.web.problems import Problem

log = logging.getLogger(__name__)

BUCKET: Final = "policies"
CHECK_S: Final = 2.0  # seconds between two checks whether the file has changed
RETRY_S: Final = 1.0
EARLIER_S: Final = 30 * 24 * 3600.0  # the seconds for which a document that was replaced is stored
Source = Literal["builtin", "file", "kv"]


class InForce(Protocol):
    """A document that was read and checked, with all that was compiled from it."""

    source: Source
    digest: str

    @property
    def document(self) -> BaseModel: ...

    @property
    def version(self) -> int: ...


InForceT = TypeVar("InForceT", bound=InForce)
# Reads and checks a value; the last argument is its YAML node. Raises InvalidDocument.
Read = Callable[[Any, Source, Any], InForceT]


class StoredDocument(BaseModel):
    """The record in KV `policies`; `by` has stored the document."""

    model_config = ConfigDict(extra="allow")

    policy: dict[str, Any]
    by: str
    at: str


class VersionConflict(Exception):
    """The error for a new document whose version is not higher than the current one's."""


class Documents(Generic[InForceT]):
    """Keeps one document up to date. `refused` maps each source to the reason why the source's
    newest document was refused. `name` is the document's name in texts, `key` its key in KV. With
    `keeps_earlier`, a document of KV that is replaced can be read again (`of_version`)."""

    def __init__(
        self,
        bus: Bus,
        read: Read[InForceT],
        builtin: InForceT,
        *,
        name: str,
        key: str,
        path: Path | None = None,
        keeps_earlier: bool = False,
    ) -> None:
        self._keeps_earlier = keeps_earlier
        self._bus = bus
        self._bucket = bus.bucket(BUCKET)
        self._make = read
        self._builtin = builtin
        self._name = name
        self._key = key
        self._path = path
        self._text: str | None = None  # the content of the file at the last read
        self._read: dict[Source, InForceT] = {}
        self.stored: StoredDocument | None = None  # None if the document does not come from KV
        self._has_record = False
        self.is_read = False  # whether the record in KV was read, or is known to be missing
        self.refused: dict[str, str] = {}

    @property
    def current(self) -> InForceT:
        """The current document. Raises Retry if the record has a mistake, and none was before."""
        if "kv" in self._read:
            return self._read["kv"]
        if self._has_record:
            raise Retry(RETRY_S)
        return self._read.get("file") or self._builtin

    async def load(self) -> None:
        """Read the document from the file and from KV; wait until the NATS server answers. Raises
        ConfigurationError if the file cannot be read, or has a mistake."""
        if self._path is not None:
            try:
                self._text = self._path.read_text()
                self._take(self._of_text(self._text))
            except (OSError, UnicodeDecodeError, InvalidDocument) as error:
                raise ConfigurationError(f"the {self._name} {self._path}: {error}") from None
        await until_answered(f"reading the {self._name}", self._read_record)

    async def require_read(self) -> None:
        """Read the record in KV, unless this was done. Raises BusError."""
        if not self.is_read:
            await self._read_record()

    async def in_force(self) -> InForceT:
        """Return the document for the start of a run. Raises BusError if it was never read, and
        Problem 503 if the record has a mistake, and none was before."""
        await self.require_read()
        try:
            return self.current
        except Retry:
            reason = self.refused.get("kv")
            text = f"no run starts, since the {self._name} have a mistake: {reason}"
            raise Problem(503, text) from None

    async def follow(self) -> None:
        subject = f"$KV.{BUCKET}.{self._key}"
        await Reader(self._bus, f"KV_{BUCKET}", subject, 1, self._read_record).run()

    async def watch_file(self) -> None:
        while self._path is not None:
            await asyncio.sleep(CHECK_S)
            try:
                text = await asyncio.to_thread(self._path.read_text)
                if text != self._text or "file" in self.refused:
                    self._text = text
                    self._take(self._of_text(text))
            except (OSError, UnicodeDecodeError, InvalidDocument) as error:
                self._refuse("file", str(error))

    async def apply(self, value: Any, by: str) -> InForceT:
        """Store a new document.

        Raises:
            InvalidDocument: the document has a mistake; nothing has changed.
            VersionConflict: also if another document was stored at the same time.
            BusError: the document was not stored, or it is unknown whether it was stored.
        """
        made = self._make(value, "kv", None)
        entry = await self._bucket.get(self._key)
        known = _version(entry.value) if entry is not None else self.current.version
        if made.version <= known:
            raise VersionConflict(
                f"the current {self._name} has the version {known}; read it again, make your "
                f"change to it, and give it the version {known + 1}"
            )
        content = made.document.model_dump(mode="json", by_alias=True, exclude_unset=True)
        stored = StoredDocument(policy=content, by=by, at=self._bus.clock.stamp())
        revision = entry.revision if entry is not None else 0
        payload = stored.model_dump_json().encode()
        if entry is not None and self._keeps_earlier:
            await self._bucket.create(f"{self._key}.{known}", entry.value, EARLIER_S)
        if await self._bucket.update(self._key, payload, revision) is None:
            raise VersionConflict(f"another {self._name} was stored at the same moment; read again")
        await self._read_record()
        return made

    async def of_version(self, version: int) -> InForceT | None:
        """Return the document of a version that was in force; None if it is not stored any more.
        Raises BusError, and Retry as `current`."""
        if version > self.current.version:
            await self._read_record()  # another process has read the newest document before
        if version == self.current.version:
            return self.current
        entry = await self._bucket.get(f"{self._key}.{version}")
        if entry is None:
            return None
        return self._make(StoredDocument.model_validate_json(entry.value).policy, "kv", None)

    def _of_text(self, text: str) -> InForceT:
        value, root = value_of(text)
        return self._make(value, "file", root)

    async def _read_record(self, _: Stored | None = None) -> None:
        entry = await self._bucket.get(self._key)
        self._has_record = entry is not None and bool(entry.value)
        self.is_read = True
        if entry is None or not entry.value:
            self.stored = None
            if self._read.pop("kv", None) is not None:
                log.warning(
                    "the record of the %s was deleted; the file or the built-in one applies",
                    self._name,
                )
            self.refused.pop("kv", None)
            return
        try:
            stored = StoredDocument.model_validate_json(entry.value)
            self._take(self._make(stored.policy, "kv", None))
            self.stored = stored
        except ValueError as error:
            self._refuse("kv", str(error))

    def _take(self, read: InForceT) -> None:
        before = self._read.get(read.source)
        self._read[read.source] = read
        self.refused.pop(read.source, None)
        if before is None or before.digest != read.digest:
            text = "%s %d (%s) was read: %s"
            log.info(text, self._name, read.version, read.source, read.digest)
        if read.source == "kv" or not self._has_record:
            telemetry.DOCUMENT_VERSIONS[self._name].set(read.version)

    def _refuse(self, source: Source, reason: str) -> None:
        if self.refused.get(source) != reason:
            self.refused[source] = reason
            telemetry.DOCUMENTS_REFUSED[self._name].labels(source).inc()
            text = "the new %s (%s) is refused; the previous one stays: %s"
            log.error(text, self._name, source, reason)


def _version(value: bytes | None) -> int:
    """Return the version of a stored document; 0, which any replaces, if it is unreadable."""
    try:
        return int(orjson.loads(value or b"{}")["policy"]["version"])
    except (ValueError, LookupError, TypeError):
        return 0
