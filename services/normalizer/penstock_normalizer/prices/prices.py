"""The prices in force: the operator's table first, then public prices."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

from penstock.dialects.base import JsonObject
from penstock.dialects.usage import USAGE
from penstock.settings import ConfigurationError
from penstock_normalizer.prices.public import PublicPrices
from penstock_normalizer.prices.table import Call, InvalidPrices, PriceTable, read_table

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0  # seconds between two looks at the table's file


class Prices:
    """Computes the cost of calls of models and tools. A changed table is in force within `CHECK_S`
    seconds.

    Costs of events that are published already do not change. Raises ConfigurationError if the table
    cannot be read, or is no table.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._text = ""
        self._table: PriceTable | None = None
        if path is not None:
            try:
                self._text = path.read_text("utf-8")
                self._table = read_table(self._text)
            except (OSError, InvalidPrices, UnicodeError) as error:
                raise ConfigurationError(f"PENSTOCK_PRICES: {path}: {error}") from error
        try:
            self._public: PublicPrices | None = PublicPrices()
        except ImportError:
            self._public = None

    def cost_of(
        self, type_: str, data: JsonObject, facts: JsonObject, since: str, timestamp: str
    ) -> dict[str, Any] | None:
        """Do what `CostOf` of the fold says. A failure of the package of public prices must not end
        the run, so it is logged."""
        is_tool = type_ != USAGE
        if self._table is not None:
            agent, tenant = facts.get("agent", ""), facts.get("tenant") or ""
            cost = self._table.cost(Call(data, agent, tenant, since, timestamp, is_tool))
            if cost is not None:
                return cost
        if self._public is None or is_tool:
            return None
        try:
            return self._public.cost(data, timestamp)
        except Exception:
            log.exception("the public price of model %s cannot be computed", data.get("model"))
            return None

    async def follow(self) -> None:
        """Read the table again whenever its file has changed, until cancelled. A table with a
        mistake is logged once, and the table before it stays in force."""
        while self._path is not None:
            await asyncio.sleep(CHECK_S)
            try:
                text = await asyncio.to_thread(self._path.read_text, "utf-8")
                if text == self._text:
                    continue
                self._text = text
                self._table = read_table(text)
                log.info("prices: version %s of %s is in force", self._table.version, self._path)
            except (OSError, InvalidPrices, UnicodeError) as error:
                log.error("prices: the table before stays in force: %s: %s", self._path, error)
