"""The operator's table of prices: a YAML document, and the cost of a call of a model or a tool by
it. Pure.

Money is an integer of micro-units of its currency (0.000001 EUR). A price is for a million tokens,
so it is an integer of micro-units, too, and each part of a cost is rounded once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
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
_HOUR_MS: Final = 3_600_000

# The outcomes of tool calls that cost something: the tool has run.
_HAS_RUN: Final = frozenset({"ok", "error", "partial"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a model, with the data of its `llm.usage`, or of a tool (`is_tool`), with the data
    of its `llm.tool_result`. The call took place between `since` and `timestamp` (RFC 3339)."""

    data: Mapping[str, Any]
    agent: str
    tenant: str
    since: str
    timestamp: str
    is_tool: bool = False

    @property
    def duration_ms(self) -> int:
        begun, ended = map(datetime.fromisoformat, (self.since, self.timestamp))
        return max(round((ended - begun).total_seconds() * 1000), 0)


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

    def cost(self, used: Mapping[str, Any]) -> int | None:
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
        return _divided(max(total, 0), MICROS)


class Price(Part):
    """One row: which calls it is for, and their prices. `*` in a name stands for any text. A row
    with `tool` is for calls of tools, a row without is for calls of models."""

    provider: str = "*"
    model: str = "*"
    tool: str | None = None
    agent: str = "*"
    tenant: str = "*"
    from_: date | None = Field(None, alias="from")
    currency: str | None = Field(None, pattern=r"^[A-Z]{3}$")
    per_million: PerMillion | None = None
    per_call: Amount | None = None
    per_hour: Amount | None = None

    @model_validator(mode="after")
    def _has_price(self) -> Price:
        if self.tool is not None:
            of_model = {"provider", "model", "per_million", "per_hour"} & self.model_fields_set
            if of_model or self.per_call is None:
                raise ValueError("a row with `tool` has `per_call`, and nothing of a model")
        elif self.per_million is None and self.per_call is None and self.per_hour is None:
            raise ValueError("needs `per_million`, `per_call` or `per_hour`")
        return self

    def fits(self, call: Call) -> bool:
        names = (
            [(call.data.get("tool"), self.tool)]
            if self.tool is not None
            else [(call.data.get("model"), self.model), (call.data.get("provider"), self.provider)]
        )
        return (
            call.is_tool == (self.tool is not None)
            and all(
                fnmatchcase(name or "", pattern)
                for name, pattern in (*names, (call.agent, self.agent), (call.tenant, self.tenant))
            )
            and (self.from_ is None or self.from_.isoformat() <= call.timestamp[:10])
        )

    def cost(self, call: Call) -> int | None:
        """Return micro-units; None if the tokens or the time of a single call are not known."""
        total = self.per_call or 0
        if self.per_million is not None:
            if (tokens := self.per_million.cost(call.data)) is None:
                return None
            total += tokens
        if self.per_hour is not None:
            if call.data.get("reported") != "call":
                return None
            total += _divided(self.per_hour * call.duration_ms, _HOUR_MS)
        return total


def _divided(amount: int, by: int) -> int:
    return (amount + by // 2) // by


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

    def cost(self, call: Call) -> dict[str, Any] | None:
        """Return the `cost` of a call; None if no row fits, or what it is computed from is not
        known."""
        if call.is_tool and call.data.get("outcome") not in _HAS_RUN:
            return None
        for price in self.document.prices:
            if price.fits(call):
                micros = price.cost(call)
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
