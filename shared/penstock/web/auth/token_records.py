"""Keeps the records of opaque secrets: of stream tokens, service tokens and one-time links.

A secret is a prefix and 32 random bytes. The bucket has a record for each secret, with the SHA-256
of the secret, and never the secret. The hash needs no salt, because nobody can guess 256 random
bits. The first half of the hash is the id of the secret: its key in the bucket, and its name in
lists and revocations.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import orjson

from penstock.web.problems import Problem, unavailable

USED_EVERY_S: Final = 60.0  # Seconds between two updates of a record's `last_used_at`.
LOOKUPS_AT_ONCE: Final = 8
MAX_KNOWN: Final = 10_000  # how many secrets that were found a process remembers, as hashes
_RANDOM: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_ID: Final = re.compile(r"[0-9a-f]{32}")


class StoredValue(Protocol):
    """A value of the bucket, with its revision."""

    @property
    def value(self) -> bytes: ...

    @property
    def revision(self) -> int: ...


class TokenBucket(Protocol):
    """The bucket `tokens` of `penstock.bus`. `get` returns what the stream's leader has, so that
    every process refuses a secret from the moment of its revocation."""

    async def get(self, key: str) -> StoredValue | None:
        """Return the current value; None if the key does not exist."""
        ...

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        """Write a new key and return the revision; None if the key exists."""
        ...

    async def update(
        self, key: str, value: bytes, revision: int, ttl_s: float | None = None
    ) -> int | None:
        """Replace the value if it still has `revision`, and return the new revision. Return None if
        the value was changed or deleted."""
        ...

    async def delete(self, key: str) -> bool: ...


class TokenRecord(Protocol):
    """A dataclass without the secret. Lists are tuples. Times are in Unix seconds."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def id(self) -> str: ...

    @property
    def expires_at(self) -> float: ...


R = TypeVar("R", bound=TokenRecord)


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A secret for which there is no record yet."""

    text: str
    hash: str

    @property
    def id(self) -> str:
        return _id_of(self.hash)


@dataclass(frozen=True, slots=True)
class Found(Generic[R]):
    """A record as it is stored."""

    record: R
    hash: str
    revision: int


class TokenRecords(Generic[R]):
    """The records of one kind of secrets.

    Each method that reads or writes raises Problem 503 if the bucket cannot be reached.

    Anybody can ask for any secret, and a secret that does not exist costs a request to NATS. So a
    process asks for at most `LOOKUPS_AT_ONCE` secrets at a time that it has not found before, in
    the order in which they came. Nobody is refused: a limit that strangers reach would lock out
    those who have a valid secret.
    """

    def __init__(
        self,
        bucket: TokenBucket,
        record_type: type[R],
        *,
        what: str,
        prefix: str,
        keys: str = "",
        unavailable_on: tuple[type[Exception], ...] = (),
        now: Callable[[], float] = time.time,
        found_after_end_s: float = 0.0,
    ) -> None:
        """Describe the kind of secrets.

        Args:
            bucket: the bucket of the records.
            record_type: the dataclass of a record.
            what: the name of the kind in error texts, such as `stream token`.
            prefix: the first characters of a secret, by which tools that search logs and
                repositories for secrets recognise it.
            keys: the first characters of the records' keys in the bucket.
            unavailable_on: the errors of a bucket that cannot be reached; others are not caught.
            now: returns Unix seconds from a clock that all processes share.
            found_after_end_s: seconds for which a record is found after it has expired.
        """
        self.now = now
        self._bucket = bucket
        self._type = record_type
        self._what = what
        self._prefix = prefix
        self._keys = keys
        self._unavailable_on = unavailable_on
        self._found_after_end_s = found_after_end_s
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._known: dict[str, None] = {}  # hashes of secrets that were found, the oldest first
        # maps an id to the time at which this process last recorded a use of the secret
        self._used_at: dict[str, float] = {}

    def new(self) -> NewSecret:
        text = self._prefix + secrets.token_urlsafe(32)
        return NewSecret(text, _hash_of(text))

    async def add(self, secret: NewSecret, record: R) -> None:
        with self.reaching():
            await self._bucket.create(
                self.key(record.id), _dumped(record, secret.hash), self._ttl_s(record)
            )

    async def find(self, secret: str) -> Found[R] | None:
        """Return the record of a secret; None if it is unknown, has expired or was revoked."""
        random = secret.removeprefix(self._prefix)
        if random == secret or not _RANDOM.fullmatch(random):
            return None
        hashed = _hash_of(secret)
        async with self._lookup(hashed):
            found = await self.get(_id_of(hashed))
        if found is None or not hmac.compare_digest(found.hash, hashed):
            return None
        self._known.pop(hashed, None)
        self._known[hashed] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return found

    async def get(self, token_id: str) -> Found[R] | None:
        """Return the record with this id; None without one, or if it has expired."""
        if not _ID.fullmatch(token_id):
            return None
        with self.reaching():
            stored = await self._bucket.get(self.key(token_id))
        if stored is None:
            return None
        record, hashed = self.parse(stored.value)
        # A bucket may delete expired keys late or never, so the expiry is checked here.
        if record.expires_at + self._found_after_end_s <= self.now():
            return None
        return Found(record, hashed, stored.revision)

    async def replace(self, found: Found[R], record: R) -> bool:
        """Replace a record; return False if it was changed or revoked meanwhile."""
        with self.reaching():
            value = _dumped(record, found.hash)
            key, ttl_s = self.key(record.id), self._ttl_s(record)
            return await self._bucket.update(key, value, found.revision, ttl_s) is not None

    async def note_use(self, found: Found[R]) -> None:
        """Record a use in `last_used_at`, at most once a minute. If the bucket cannot be reached,
        or the record has changed, do nothing: a use must not restore a secret that was revoked."""
        now, token_id = self.now(), found.record.id
        last_s: float | None = getattr(found.record, "last_used_at", None)
        noted_s = self._used_at.get(token_id, -USED_EVERY_S)
        if now - max(last_s or -USED_EVERY_S, noted_s) < USED_EVERY_S:
            return
        self._used_at = {id_: at for id_, at in self._used_at.items() if now - at < USED_EVERY_S}
        self._used_at[token_id] = now
        changes: dict[str, Any] = {"last_used_at": now}
        with contextlib.suppress(Problem):
            await self.replace(found, replace(found.record, **changes))

    async def delete(self, token_id: str) -> None:
        with self.reaching():
            await self._bucket.delete(self.key(token_id))

    def valid(self, stored: Sequence[StoredValue]) -> list[R]:
        """Return the records of these values that have not expired."""
        records = [self.parse(each.value)[0] for each in stored]
        return [record for record in records if record.expires_at > self.now()]

    def parse(self, value: bytes) -> tuple[R, str]:
        """Return the record in a value, and the hash of its secret. Members that this version does
        not know are left out."""
        document = orjson.loads(value)
        names = {each.name for each in fields(self._type)} & document.keys()
        return self._type(**{name: _as_tuple(document[name]) for name in names}), document["digest"]

    def key(self, token_id: str) -> str:
        """Return the key of a record; with `*`, the pattern of all keys of this kind."""
        return f"{self._keys}{token_id}"

    @contextmanager
    def reaching(self) -> Iterator[None]:
        try:
            yield
        except self._unavailable_on as error:
            raise unavailable(f"the {self._what}s are out of reach; try again") from error

    @asynccontextmanager
    async def _lookup(self, hashed: str) -> AsyncIterator[None]:
        if hashed in self._known:
            yield
            return
        async with self._lookups:
            yield

    def _ttl_s(self, record: R) -> float:
        left_s = max(0.0, record.expires_at - self.now()) + self._found_after_end_s
        return max(1.0, math.ceil(left_s))


def _hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _id_of(hashed: str) -> str:
    return hashed[:32]


def _dumped(record: TokenRecord, hashed: str) -> bytes:
    return orjson.dumps(asdict(record) | {"digest": hashed})


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
