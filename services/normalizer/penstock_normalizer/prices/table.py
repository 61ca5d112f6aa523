"""The operator's table of prices: a YAML document, and the cost of a call by it. Pure.

Money is an integer of micro-units of its currency (0.000001 EUR). A price is for a million tokens,
so it is an integer of micro-units, too, and the cost of a call is rounded once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from penstock.validation import Part, reason_of
from penstock.yaml_lines import REPEATED_KEY, line_of, repeated_keys

MICROS: Final = 1_000_000
SOURCE: Final = "table"
_LIMIT: Final = 1_000_000  # the highest price, in units

Usage = Mapping[str, Any]  # the data of an `llm.usage`


def _micros(value: object) -> int:
    """Return an amount in micro-units. YAML reads 0.125 as a float, whose text is exact."""
    try:
        amount = Decimal(str(value)) * MICROS if not isinstance(value, bool) else Decimal("NaN")
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount <= _LIMIT * MICROS:
        raise ValueError(f"must be a number from 0 to {_LIMIT}")
    if amount != int(amount):
        raise ValueError("has more than 6 decimal places")
    return int(amount)


Amount = Annotated[int, BeforeValidator(_micros)]


class PerMillion(Part):
    """The prices of a million tokens of each kind."""

    input: Amount
    output: Amount
    cached_input: Amount | None = None  # default: as `input`
    cache_write: Amount | None = None  # default: as `input`
    reasoning: Amount | None = None  # default: as `output`

    def cost(self, used: Usage) -> int | None:
        """Return micro-units; None if the tokens read and written are not known."""
        read, written = used.get("input_tokens"), used.get("output_tokens")
        if read is None or written is None:
            return None
        total: int = read * self.input + written * self.output
        for name, price, within in (
            ("cached_input_tokens", self.cached_input, self.input),
            ("cache_write_tokens", self.cache_write, self.input),
            ("reasoning_tokens", self.reasoning, self.output),
        ):
            if price is not None:
                total += used.get(name, 0) * (price - within)
        return (max(total, 0) + MICROS // 2) // MICROS


class Price(Part):
    """One row: which calls it is for, and their prices. `*` in a name stands for any text."""

    provider: str = "*"
    model: str = "*"
    agent: str = "*"
    from_: date | None = Field(None, alias="from")
    currency: str | None = Field(None, pattern=r"^[A-Z]{3}$")
    per_million: PerMillion | None = None
    per_call: Amount | None = None

    @model_validator(mode="after")
    def _has_price(self) -> Price:
        if self.per_million is None and self.per_call is None:
            raise ValueError("needs `per_million` or `per_call`")
        return self

    def fits(self, used: Usage, agent: str, day: str) -> bool:
        """Return whether the row is for this call; `day` is the date of the call, as YYYY-MM-DD."""
        return (
            fnmatchcase(used.get("model") or "", self.model)
            and fnmatchcase(used.get("provider") or "", self.provider)
            and fnmatchcase(agent, self.agent)
            and (self.from_ is None or self.from_.isoformat() <= day)
        )

    def cost(self, used: Usage) -> int | None:
        if self.per_million is None:
            return self.per_call
        tokens = self.per_million.cost(used)
        return None if tokens is None else tokens + (self.per_call or 0)


class Document(Part):
    """The YAML document. Of several rows that fit a call, the first one counts."""

    version: str | None = None
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$")
    prices: list[Price]


@dataclass(frozen=True, slots=True)
class PriceTable:
    """A checked document. `version` is the document's own, or else the beginning of its digest."""

    document: Document
    version: str

    def cost(self, used: Usage, agent: str, day: str) -> dict[str, Any] | None:
        """Return the `cost` of an `llm.usage`; None if no row fits, or tokens are not known."""
        for price in self.document.prices:
            if price.fits(used, agent, day):
                micros = price.cost(used)
                if micros is None:
                    return None
                currency = price.currency or self.document.currency
                return {
                    "micros": micros,
                    "currency": currency,
                    "source": SOURCE,
                    "version": self.version,
                }
        return None


class InvalidPrices(ValueError):
    """The document is no table of prices. The text names the line and the field."""


def read_table(text: str) -> PriceTable:
    """Check a YAML document. Raises InvalidPrices if the document is not YAML, or no table."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        repeated = next(repeated_keys(root), None)
        if repeated is not None:
            raise InvalidPrices(f"line {repeated[1]}: {repeated[0]}: {REPEATED_KEY}")
        document = Document.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise InvalidPrices(f"not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        line = line_of(root, first["loc"])
        raise InvalidPrices(f"line {line}: {_dotted(first['loc'])}: {reason_of(first)}") from error
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return PriceTable(document, document.version or digest)


def _dotted(path: Sequence[int | str]) -> str:
    return ".".join(map(str, path)) or "the document"
