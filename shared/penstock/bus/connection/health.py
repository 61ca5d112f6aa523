"""Records which operations NATS refuses and where, and explains the refusals to operators.

Callers report every refusal, and every success while there is a refusal. The log has a line when a
refusal begins, every half minute while the refusal lasts, and when the refusal ends. Does no I/O
except logging.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.bus.subjects import CATEGORIES, SHARD

log = logging.getLogger(__name__)

Kind = Literal["full", "denied", "unheard", "away", "lost", "sealed"]

FORGOTTEN_S = 15.0  # seconds without a new attempt, after which a refusal no longer counts
# The seconds after which a missing connection is reported. An election takes up to nine seconds and
# needs no operator, so a shorter outage is not reported.
DISCONNECTED_S = 10.0
LOG_AGAIN_S = 30.0  # seconds between two log lines about the same refusal

# The stream that stores the messages of a subject, by the subject's first token.
_STREAMS: Mapping[str, str] = {
    "raw": "RAW",
    "command": "COMMANDS",
    "deadletter": "DEADLETTERS",
    "delivery": "DELIVERIES",
    "schedule": "SCHEDULES",
    "due": "SCHEDULES",
    "audit": "AUDIT",
    "journal": "JOURNAL",
    "key": "KEYS",
    **dict.fromkeys(CATEGORIES, "EVENTS"),
}
_PREFIXES = {"$KV": "KV_", "$O": "OBJ_"}

_WORDS: Mapping[Kind, str] = {
    "full": "{where} takes no more messages ({words}); messages for it are held back and "
    "retried. Give NATS more room: its disk, max_file_store, the account's limit, or "
    "the stream's own (`nats stream edit {where} --max-bytes`)",
    "denied": "NATS does not let this user publish to {where} ({words}); messages for it are held "
    "back and retried. Allow it in the permissions of the user (what each service "
    "needs: deploy/nats/accounts.conf)",
    "unheard": "NATS does not let this user subscribe to {where} ({words}); this is retried. "
    "Allow it in the permissions of the user (what each service needs: deploy/nats/accounts.conf)",
    "away": "{where} has not answered for {seconds:.0f} s ({words}). Do NATS's servers have a "
    "quorum, and room on their disks? See their logs; after a full disk they must be restarted",
    "lost": "{words}",
    "sealed": "{words}",
}
# A refusal of these kinds no longer counts when it has not been repeated for `FORGOTTEN_S`. Only a
# successful attempt can show that such a refusal has ended, and there may be no further attempt.
_FORGOTTEN: frozenset[Kind] = frozenset({"full", "denied", "away"})


_ADVICE: Mapping[str, str] = {
    "authorization violation": "NATS refuses {user}: set the credentials that its "
    "configuration has (PENSTOCK_NATS_PASSWORDS, or PENSTOCK_NATS_USER and PENSTOCK_NATS_PASSWORD, "
    "or PENSTOCK_NATS_CREDENTIALS)",
    "certificate verify failed": "The server's certificate is not signed by an authority that this "
    "client trusts, or is for another name: set PENSTOCK_NATS_TLS_CA to the authority's file, and "
    "use a name that the certificate has in PENSTOCK_NATS_URL",
    "certificate required": "The server requires a client certificate: set "
    "PENSTOCK_NATS_TLS_CERT and PENSTOCK_NATS_TLS_KEY",
    "unknown ca": "The server refuses this client's certificate: set PENSTOCK_NATS_TLS_CERT and "
    "PENSTOCK_NATS_TLS_KEY to one of an authority that the server trusts",
    "bad certificate": "The server refuses this client's certificate: set PENSTOCK_NATS_TLS_CERT "
    "and PENSTOCK_NATS_TLS_KEY to one of an authority that the server trusts",
    "does not ask for tls": "Switch TLS on in the server's configuration, or take tls:// out of "
    "PENSTOCK_NATS_URL and unset PENSTOCK_NATS_TLS_*",
}


def advice_on(trouble: str, user: str | None) -> str:
    """Return advice about a refusal that no retry can change; empty for any other refusal."""
    for words, advice in _ADVICE.items():
        if words in trouble.lower():
            return advice.format(user=f"the user {user}" if user else "a client without a user")
    return ""


def stream_of(subject: str) -> str:
    """Return the stream that stores messages of the subject; else the family of the subject."""
    first, _, rest = subject.partition(".")
    if first == SHARD:
        shard, _, rest = rest.partition(".")
        return f"{stream_of(rest)}_{shard}"
    if prefix := _PREFIXES.get(first.upper()):  # the server names a refused subject in lower case
        return prefix + rest.partition(".")[0]
    return _STREAMS.get(first, subject_family(subject))


def subject_family(subject: str) -> str:
    """Return a subject's first tokens, such as `raw`, `$KV.runs` or `$JS.API.STREAM.MSG.GET`."""
    tokens = subject.split(".")
    if tokens[0].upper() == "$JS":
        return ".".join(tokens[:5]).upper()  # the server names a refused subject in lower case
    return ".".join(tokens[: 2 if tokens[0].startswith("$") else 1])


@dataclass(slots=True)
class _Refusal:
    kind: Kind
    where: str
    words: str
    since: float
    last: float
    logged_at: float = -LOG_AGAIN_S

    def text(self, now: float) -> str:
        return _WORDS[self.kind].format(
            where=self.where, words=self.words, seconds=now - self.since
        )


@dataclass
class Health:
    """Records the current refusals by kind and place. `bool(health)` is False while there is a
    refusal.

    `count` is called with the kind and the place of every refusal, for metrics. `clock` returns
    seconds.
    """

    clock: Callable[[], float] = time.monotonic
    count: Callable[[Kind, str], None] = lambda kind, where: None
    _troubles: dict[tuple[Kind, str], _Refusal] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return not self._troubles

    @property
    def reasons(self) -> list[str]:
        now = self.clock()
        self._forget(now)
        return [trouble.text(now) for trouble in self._troubles.values() if _counts(trouble, now)]

    def refused(self, kind: Kind, where: str, words: str = "") -> None:
        """Record a refused operation, with the server's text."""
        now = self.clock()
        self._forget(now)
        self.count(kind, where)
        trouble = self._troubles.setdefault(
            (kind, where), _Refusal(kind, where, words, since=now, last=now)
        )
        trouble.last, trouble.words = now, words
        if _counts(trouble, now) and now - trouble.logged_at >= LOG_AGAIN_S:
            trouble.logged_at = now
            log.error("%s", trouble.text(now))

    def worked(self, where: str, *kinds: Kind) -> None:
        """Record a success at a place, which ends the refusals of these kinds at this place."""
        for kind in kinds or ("full", "denied", "away"):
            trouble = self._troubles.pop((kind, where), None)
            if trouble is not None and trouble.logged_at > 0:
                log.info(
                    "%s works again, after %.0f s", where or "NATS", self.clock() - trouble.since
                )

    def denies(self, where: str) -> bool:
        """Return whether NATS has just refused a publish at this place for lack of permission."""
        self._forget(self.clock())
        return ("denied", where) in self._troubles

    def begin_anew(self) -> None:
        """Forget missing permissions, since a new connection may have other permissions."""
        for kind, where in tuple(self._troubles):
            if kind in ("denied", "unheard"):
                del self._troubles[kind, where]

    def _forget(self, now: float) -> None:
        for key, trouble in tuple(self._troubles.items()):
            if trouble.kind in _FORGOTTEN and now - trouble.last > FORGOTTEN_S:
                del self._troubles[key]


def _counts(trouble: _Refusal, now: float) -> bool:
    return trouble.kind != "away" or now - trouble.since >= DISCONNECTED_S
