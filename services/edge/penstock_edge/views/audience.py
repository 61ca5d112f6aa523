"""Makes views for callers who may read what redactions mask for others (`where: egress`). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from penstock.bus import Stored
from penstock.bus.masking import whole
from penstock.web.auth import Identity
from penstock_edge.views.cursor import StreamSequence
from penstock_edge.views.items import Encoding, Item
from penstock_edge.views.view import View

PII: Final = "pii"


def seen_by(who: Identity, view: View) -> View:
    """Return the view as this caller gets it. Callers with the scope `pii` have hubs of their own:
    a hub encodes each event once, for all of its clients."""
    if view.reads_frames or not who.has_scope(PII):
        return view
    return replace(view, key=(*view.key, PII), encoding=lambda: Unmasked(view.encoding()))


def encoding_for(who: Identity, encoding: Encoding) -> Encoding:
    return Unmasked(encoding) if who.has_scope(PII) else encoding


@dataclass(slots=True)
class Unmasked(Encoding):
    """Encodes events as they came."""

    encoding: Encoding

    def is_ready(self, stored: Stored) -> bool:
        return self.encoding.is_ready(_as_came(stored))

    async def prepare(self, stored: Stored) -> None:
        await self.encoding.prepare(_as_came(stored))

    def missing_from(self, stored: Stored) -> StreamSequence | None:
        return self.encoding.missing_from(stored)

    def fold(self, stored: Stored) -> None:
        self.encoding.fold(_as_came(stored))

    def feed(self, stored: Stored) -> Item:
        return self.encoding.feed(_as_came(stored))

    def interruption(self) -> list[bytes]:
        return self.encoding.interruption()


def _as_came(stored: Stored) -> Stored:
    return stored if stored.unmasked is None else replace(stored, payload=whole(stored))
