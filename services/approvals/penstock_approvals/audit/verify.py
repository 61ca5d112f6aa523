"""Verifies the chains of all runs and the chain of anchors. Pure.

`Verifier.take` gets the stored messages of AUDIT in the order of the stream. `Verifier.findings`
then returns each problem with its run and record.

Somebody could replace *all* records after some point, and compute all later hashes and anchors
again. Hashes alone cannot show such a replacement. A replacement can be found in two ways. Keep the
hash of an anchor elsewhere, and pass that hash as `anchor`. Or sign the anchors with a key that
such a person does not have, and pass the key in `keys`. A record after the last anchor is protected
only by the chain of its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock_approvals.audit.chain import GENESIS, Link, Malformed, is_signed, parse

ANCHOR = "anchor"  # the second token of the anchors' subject, `audit.anchor`


class Finding(NamedTuple):
    """A problem in a chain: a run id or `anchor`. `n` is the number of the record, or 0."""

    chain: str
    n: int
    what: str

    def __str__(self) -> str:
        of = "the anchors" if self.chain == ANCHOR else f"run {self.chain}"
        return f"{of}, record {self.n}: {self.what}" if self.n else f"{of}: {self.what}"


@dataclass(slots=True)
class _Chain:
    """The state of reading a chain. `hashes` are of the records from number `first` on."""

    first: int = 1
    hashes: list[str] = field(default_factory=list)
    # whether the last message was damaged; the next record is not compared with it
    broken: bool = False

    @property
    def n(self) -> int:
        return self.first + len(self.hashes) - 1

    @property
    def last(self) -> str:
        return self.hashes[-1] if self.hashes else GENESIS

    def forget_before(self, n: int) -> None:
        """Forget the hashes of the records before number `n`, because an anchor covers these
        records."""
        if self.first < n <= self.n:
            del self.hashes[: n - self.first]
            self.first = n


class Verifier:
    """Verifies records in the order in which they are read."""

    def __init__(
        self, keys: Sequence[bytes] = (), anchor: str | None = None, only: str | None = None
    ) -> None:
        """Set what the verification expects.

        `keys` may have signed the anchors; without keys, signatures are not verified. The chain of
        anchors must have the hash `anchor`. `only` is the only run whose records are verified.
        """
        self.records = 0
        self.newer = 0  # The number of records after the last anchor.
        self.losses: list[str] = []  # Texts about the losses of AUDIT that the anchors name.
        self._keys = keys
        self._wanted = anchor
        self._only = only
        self._chains: dict[str, _Chain] = {}
        self._anchors = _Chain()
        self._unsigned: list[int] = []  # the numbers of the anchors without a valid signature
        self._signed = False
        self._findings: list[Finding] = []

    @property
    def runs(self) -> int:
        return len(self._chains)

    @property
    def anchors(self) -> int:
        return self._anchors.n

    @property
    def head(self) -> str | None:
        return self._anchors.last if self._anchors.hashes else None

    def take(self, chain: str, payload: bytes, sequence: int) -> Link | None:
        """Verify the next message of the stream; return its record, or None if it is none. `chain`
        is the second token of the message's subject."""
        state = self._anchors if chain == ANCHOR else self._chains.setdefault(chain, _Chain())
        self.records += chain != ANCHOR
        self.newer = self.newer + 1 if chain != ANCHOR else 0
        try:
            link = parse(payload)
        except Malformed as error:
            self._add_finding(chain, state.n + 1, f"{error} (stream sequence {sequence})")
            # Count the damaged record. Otherwise the number of the next record would seem wrong,
            # and the next record would be reported, too.
            state.hashes.append("")
            state.broken = True
            return None
        if not state.broken:
            self._compare(chain, state, link, sequence)
        state.broken = False
        if link.n == state.n + 1:
            state.hashes.append(link.hash)
        elif link.n > state.n:
            state.first, state.hashes = link.n, [link.hash]
        if chain == ANCHOR:
            self._take_anchor(link)
        return link

    def findings(self) -> list[Finding]:
        """Return the problems. Call this after all messages were taken."""
        found = list(self._findings)
        if self._wanted is not None and self._wanted not in self._anchors.hashes:
            found.append(
                Finding(
                    ANCHOR,
                    0,
                    f"there is no anchor {self._wanted}: the anchors were cut, or written anew "
                    "since this hash was copied",
                )
            )
        if self._keys and self.anchors and not self._signed:
            found.append(Finding(ANCHOR, 0, "no anchor is signed with this key"))
        else:
            what = "it is not signed with this key, and an earlier anchor is"
            found += [Finding(ANCHOR, n, what) for n in self._unsigned]
        return found

    def _compare(self, chain: str, state: _Chain, link: Link, sequence: int) -> None:
        where = f"(stream sequence {sequence})"
        belongs = chain if chain != ANCHOR else None
        if link.record.get("run_id") != belongs:
            self._add_finding(chain, link.n, f"it was written for another chain {where}")
        elif link.n > state.n + 1:
            first, last = state.n + 1, link.n - 1
            which = f"record {first} is" if first == last else f"records {first} to {last} are"
            self._add_finding(chain, link.n, f"{which} missing before it {where}")
        elif link.n <= state.n:
            self._add_finding(
                chain, link.n, f"it was inserted: there is a record {link.n} before it {where}"
            )
        elif link.record["prev"] != state.last:
            self._add_finding(
                chain,
                link.n,
                f"it does not follow record {state.n}: one of the two was replaced {where}",
            )

    def _take_anchor(self, link: Link) -> None:
        if self._keys:
            signed = is_signed(link, self._keys)
            self._signed |= signed
            if self._signed and not signed:
                self._unsigned.append(link.n)
        if link.record.get("event") == "lost":
            self.losses.append(
                f"NATS lost the records of the stream sequences {link.record.get('stands')} to "
                f"{link.record.get('known')} (found {link.record.get('found_at')})"
            )
        named: dict[str, Any] = link.record.get("heads", {})
        try:
            heads = [(str(run), int(n), str(hash_)) for run, (n, hash_) in named.items()]
        except (AttributeError, TypeError, ValueError):
            self._add_finding(
                ANCHOR, link.n, "it was forged: it does not have the form of an anchor"
            )
            return
        for run_id, n, hash_ in heads:
            if self._only in (None, run_id):
                self._compare_head(run_id, n, hash_, link.n)

    def _compare_head(self, run_id: str, n: int, hash_: str, anchor: int) -> None:
        state = self._chains.get(run_id)
        by = f"anchor {anchor} names record {n}"
        if state is None:
            self._add_finding(run_id, 0, f"all its records were removed: {by}")
        elif n > state.n:
            self._add_finding(run_id, 0, f"its end was cut after record {state.n}: {by}")
        elif n >= state.first and state.hashes[n - state.first] not in ("", hash_):
            self._add_finding(run_id, n, f"it was replaced: {by} with another hash")
        else:
            state.forget_before(n)

    def _add_finding(self, chain: str, n: int, what: str) -> None:
        self._findings.append(Finding(chain, n, what))
