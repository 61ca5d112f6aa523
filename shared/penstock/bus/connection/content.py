"""Seals what this process publishes, opens what it reads, and keeps the keys of runs for a while.

The stream KEYS has the key of each run, wrapped by the operator's key. Only the leader is asked for
it: a replica that lags behind could lack a new key, or still have one that was destroyed.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Protocol

import orjson
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from penstock.bus import masking, sealing, subjects
from penstock.bus.connection.health import Health
from penstock.bus.connection.incoming import Incoming
from penstock.bus.connection.nats_client import Connection
from penstock.bus.connection.retry import first_answer
from penstock.bus.errors import (
    MESSAGE_NOT_FOUND,
    ApiError,
    BusUnavailable,
    ContentErased,
    ContentRefused,
    OutcomeUnknown,
)
from penstock.bus.messages import EXPECTED_SEQUENCE, Message, Stored, stored_s
from penstock.bus.sealing import (
    FIRST_BYTES,
    KEY_BYTES,
    OPENED,
    SEALED,
    KeyMissing,
    KeyUnknown,
    MasterKeys,
    Place,
    RunKey,
    RunKeys,
)
from penstock.bus.streams import KEYS

log = logging.getLogger(__name__)

# The most keys that a process keeps, and the most seconds for which it keeps one. A key that is
# destroyed is forgotten at once, by a notice to all processes. A process that has missed the notice
# lost its connection, and forgets all keys then. If it has not noticed the loss yet, the seconds
# are the bound.
MAX_KEYS: Final = 16_384
KEPT_S: Final = 60.0
_WRONG_SEQUENCE: Final = frozenset({10071, 10164})
# As `RunKeys.since`: the key was made at the time of its message, which the maker does not know.
_AT_ITS_MESSAGE: Final = 0.0
_IN_CLEAR: Final = "the content is in clear, and its run is sealed, so no service has written it"


class Asks(Protocol):
    """The requests to NATS that content needs; `JetStream` implements them."""

    @property
    def connection(self) -> Connection: ...

    async def api(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]: ...

    async def request(
        self, subject: str, payload: bytes, *, headers: dict[str, Any] | None = None
    ) -> Msg: ...


class Content:
    """Seals and opens messages. Without master keys, everything passes unchanged, and a message
    that is sealed cannot be read: that raises KeyMissing."""

    def __init__(self, ask: Asks, masters: MasterKeys, health: Health) -> None:
        self.masters = masters
        self.refuses_clear = masters.refuses_clear
        self.refused: Callable[[], object] = lambda: None  # for metrics: counts refused content
        self._ask = ask
        self._health = health
        # by run: its keys, the sequence of their message in KEYS (0: none), and when it was read
        self._keys: dict[str, tuple[RunKeys, int, float]] = {}
        self._forgettings = 0  # how often keys were forgotten

    @property
    def seals(self) -> bool:
        return self.masters.seals

    # writing

    def seal_now(self, message: Message) -> Message | None:
        """Return the message sealed; None if the key of its run must be read or made first."""
        payload = message.payload
        place = sealing.place_of(message.subject, payload) if payload else None
        if place is None or not sealing.has_content(place, payload):
            return message
        key = self._kept(place.run_id)
        return None if key is None else sealing.sealed_message(key, place, message)

    async def sealed(self, message: Message) -> Message:
        """Return the message sealed. The first message of a run makes the run's key.

        Raises:
            BusUnavailable: the key cannot be read or made now; nothing was published.
        """
        while (sealed := self.seal_now(message)) is None:
            place = sealing.place_of(message.subject, message.payload)
            assert place is not None
            await self._make_key(place.run_id)
        return sealed

    async def sealed_object(self, name: str, run_id: str, payload: bytes) -> bytes:
        if not (self.seals and subjects.is_run_id(run_id)):
            return payload
        while (key := self._kept(run_id)) is None:
            await self._make_key(run_id)
        return sealing.seal_object(key, run_id, name, payload)

    # reading

    def open_now(self, stored: Stored, *, is_fresh: bool = False) -> bool:
        """Open a message in place; return False if the key of its run must be read first. Of an
        event with masks, the payload becomes the masked form.

        Content that cannot be opened becomes `Unreadable`, whose error every reader gets. With
        `is_fresh`, the key was just read. Otherwise a new key may have been made meanwhile.
        """
        if not self._open(stored, is_fresh=is_fresh):
            return False
        masking.split(stored)
        return True

    def _open(self, stored: Stored, *, is_fresh: bool) -> bool:
        is_sealed = stored.payload[:FIRST_BYTES] in SEALED
        if stored.is_open or not (is_sealed or self.refuses_clear):
            return True
        place = sealing.place_of(stored.subject, stored.payload) if stored.payload else None
        if place is None or not (is_sealed and sealing.is_sealed(place, stored.payload)):
            # No message of such a subject is sealed so: its payload only looks sealed.
            return place is None or self._take_clear(place, stored)
        keys = self._known(place.run_id)
        if keys is None:
            return False
        try:
            stored.payload = sealing.open_message(keys, place, stored)
        except ContentErased as error:
            sealing.unreadable(stored, error)
        except ContentRefused as error:
            if isinstance(error, KeyUnknown) and not is_fresh:
                return False
            self._refuse(place, stored, error)
        stored.is_open = True
        return True

    def _take_clear(self, place: Place, stored: Stored) -> bool:
        """Refuse content that was stored in clear after the key of its run was made: all services
        seal then. Return False if the key must be read first."""
        if self.refuses_clear and sealing.has_content(place, stored.payload):
            keys = self._known(place.run_id)
            if keys is None:
                return False
            since = keys.since
            if since == _AT_ITS_MESSAGE:
                del self._keys[place.run_id]
                return False
            if since is not None and stored_s(stored) > since:
                self._refuse(place, stored, ContentRefused(_IN_CLEAR))
        elif self.refuses_clear and sealing.refers_elsewhere(place, stored.payload):
            self._refuse(place, stored, ContentRefused("the event refers to what is not its own"))
        stored.is_open = True
        return True

    def _refuse(self, place: Place, stored: Stored, error: ContentRefused) -> None:
        self.refused()
        log.warning("run %s: %s is refused: %s", place.run_id, stored.subject, error)
        sealing.unreadable(stored, error)

    async def open(self, *messages: Stored) -> None:
        """Open these messages in place, as `open_now` does.

        Raises:
            KeyMissing: this process lacks the master key.
            BusUnavailable, OutcomeUnknown: the key of a run cannot be read now.
        """
        waiting = [
            stored
            for stored in messages
            if (stored.payload[:FIRST_BYTES] in OPENED or self.refuses_clear)
            and not self.open_now(stored)
        ]
        while waiting:
            places = (sealing.place_of(stored.subject, stored.payload) for stored in waiting)
            runs = {place.run_id for place in places if place is not None}
            await asyncio.gather(*map(self._read_key, runs))
            waiting = [stored for stored in waiting if not self.open_now(stored, is_fresh=True)]

    async def opened_object(self, name: str, content: bytes, at_s: float) -> bytes:
        """Return the content of an object that was stored at `at_s`, in seconds since 1970.
        Raises ContentErased, ContentRefused, and BusError."""
        run_id = sealing.run_of_object(content)
        if run_id is None:
            await self._check_clear_object(name, at_s)
            return content
        await self._read_key(run_id)
        try:
            return sealing.open_object(self._keys[run_id][0], name, content)
        except ContentRefused:
            self.refused()
            raise

    async def _check_clear_object(self, name: str, at_s: float) -> None:
        """Refuse an object as `_take_clear` refuses a message."""
        for run_id in filter(subjects.is_run_id, name.split(".") if self.refuses_clear else ()):
            await self._read_key(run_id)
            since = self._keys[run_id][0].since
            if since is not None and at_s > since:
                self.refused()
                log.warning("run %s: the object %s is refused: %s", run_id, name, _IN_CLEAR)
                raise ContentRefused(_IN_CLEAR)

    # the keys of runs

    async def check(self) -> str:
        """Return why this process cannot open the newest content; empty if it can."""
        newest = await self._message(last_by_subj=subjects.content_key("*"))
        if newest is None or self.masters.has_master_of(newest[1]):
            return ""
        return sealing.missing_text(sealing.master_of(newest[1]), bool(self.masters))

    async def stored_keys(self, run_id: str) -> tuple[RunKeys, int]:
        """Return the keys of a run as KEYS has them now, and the sequence of their message (0: it
        has none).

        Raises:
            KeyMissing: this process lacks the master key.
            BusUnavailable, OutcomeUnknown: the keys cannot be read now.
        """
        newest = await self._message(last_by_subj=subjects.content_key(run_id))
        if newest is None:
            return RunKeys(), 0
        try:
            return self.masters.unwrap(run_id, newest[1], newest[2]), newest[0]
        except KeyMissing as error:
            self._health.refused("sealed", "", str(error))
            raise
        except ContentRefused as error:
            # Somebody has written over the key. Only the operator can help, with a backup.
            self._health.refused("sealed", "", str(error))
            raise BusUnavailable(str(error)) from error

    async def destroy(self, run_id: str) -> bool:
        """Destroy the key of a run, so that nobody can read the run's content any more.

        First KEYS says that the key is destroyed, so that no process takes it any more. Then the
        server overwrites the key in every replica, and all processes forget it. A repeated call
        completes one that was interrupted. Returns False if there was no key.

        Raises:
            BusUnavailable, OutcomeUnknown: the key may still be there; call again.
        """
        subject = subjects.content_key(run_id)
        was_there = False
        while (newest := await self._message(last_by_subj=subject)) is not None:
            sequence, value, _ = newest
            destroyed = sealing.destruction(value)
            if destroyed is None:
                break
            was_there |= bool(await self._store(run_id, destroyed, sequence))
        while newest is not None and (first := await self._message(seq=1, next_by_subj=subject)):
            if first[0] >= newest[0]:
                break
            # Without `no_erase`, the server overwrites the message with random bytes.
            await self._ask.api(f"STREAM.MSG.DELETE.{KEYS}", {"seq": first[0]})
        await self.let_forget(run_id)
        return was_there

    async def let_forget(self, run_id: str) -> None:
        """Let all processes and subscribers forget the key of a run. Raises OutcomeUnknown if some
        may still have it; call again."""
        self.forget(run_id)
        try:
            await self._ask.connection.publish(subjects.key_notice(run_id))
            await self._ask.connection.flush()
        except NatsError as error:
            raise OutcomeUnknown(
                f"not all processes may have forgotten the key of run {run_id}: {error}"
            ) from error

    def on_notice(self, message: Incoming) -> None:
        self.forget(message.subject.rpartition(".")[2])

    def forget(self, run_id: str | None = None) -> None:
        """Forget the key of a run; without a run, all keys."""
        self._forgettings += 1
        if run_id is None:
            self._keys.clear()
        else:
            self._keys.pop(run_id, None)

    def _known(self, run_id: str) -> RunKeys | None:
        """Return the keys of a run, which may be none; None if they must be read first."""
        kept = self._keys.get(run_id)
        return kept[0] if kept is not None and time.monotonic() - kept[2] < KEPT_S else None

    def _kept(self, run_id: str) -> RunKey | None:
        keys = self._known(run_id)
        return keys.key if keys is not None else None

    async def _read_key(self, run_id: str) -> None:
        while True:
            before = self._forgettings
            keys, sequence = await self.stored_keys(run_id)
            if before == self._forgettings:
                break
            # A notice has come meanwhile. The answer may be older than the notice.
        if not self._health:
            self._health.worked("", "sealed")
        self._keep(run_id, keys, sequence)

    def _keep(self, run_id: str, keys: RunKeys, sequence: int) -> None:
        self._keys.pop(run_id, None)
        self._keys[run_id] = keys, sequence, time.monotonic()
        if len(self._keys) > MAX_KEYS:
            del self._keys[next(iter(self._keys))]

    async def _make_key(self, run_id: str) -> None:
        """Read the key of a run, and make it if there is none. If another process makes or destroys
        it at the same time, it is known after the next call."""
        try:
            await self._read_key(run_id)
            keys, sequence, _ = self._keys[run_id]
            if keys.key is None:
                since = _AT_ITS_MESSAGE if self.refuses_clear else None
                made = RunKeys(RunKey(secrets.token_bytes(KEY_BYTES)), keys.destroyed, since)
                before, value = self._forgettings, self.masters.wrap(run_id, made)
                at = await self._store(run_id, value, sequence)
                if at and before == self._forgettings:  # or the key may be destroyed already
                    self._keep(run_id, made, at)
        except OutcomeUnknown as error:
            # The message itself was not published. The next attempt reads the key.
            raise BusUnavailable(f"the key of run {run_id} is not known yet: {error}") from error

    async def _store(self, run_id: str, value: bytes, last: int) -> int:
        """Store a value of KEYS after the sequence `last`; return its sequence, or 0 if another
        process was first."""
        headers = {EXPECTED_SEQUENCE: f"{last}"}
        answer = await self._ask.request(subjects.content_key(run_id), value, headers=headers)
        stored = orjson.loads(answer.data)
        error = stored.get("error")
        if error is None:
            return int(stored["seq"])
        if error.get("err_code") in _WRONG_SEQUENCE:
            return 0
        raise BusUnavailable(f"the key of run {run_id} was not stored: {error.get('description')}")

    async def _message(self, **which: str | int) -> tuple[int, bytes, float] | None:
        """Return a message of KEYS: its sequence, its value, and when it was stored."""
        call, body = f"STREAM.MSG.GET.{KEYS}", dict(which)
        try:
            message = (await first_answer(lambda: self._ask.api(call, body)))["message"]
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        made_s = datetime.fromisoformat(message["time"]).timestamp()
        return message["seq"], base64.b64decode(message["data"]), made_s
