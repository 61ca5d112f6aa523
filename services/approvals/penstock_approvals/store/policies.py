"""Keeps the current policy (see `penstock.documents.store`).

While a record with a mistake is the only policy, the service handles no request. If the service
used the built-in policy instead, a requester could decide an approval that the intended policy
forbids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.bus import Bus
from penstock.documents.store import Documents
from penstock_approvals.policy.document import from_value
from penstock_approvals.policy.rulings import Policy

KEY: Final = "current"
_BUILTIN: Final = Policy()


class Policies(Documents[Policy]):
    """Keeps the current policy up to date."""

    def __init__(self, bus: Bus, path: Path | None = None) -> None:
        super().__init__(bus, from_value, _BUILTIN, name="policy", key=KEY, path=path)
