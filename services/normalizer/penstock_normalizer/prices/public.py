"""Public prices of models: the optional package `genai-prices`, in the version that is installed.

The package can refresh its prices over the network. Penstock never asks it to.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

PACKAGE: Final = "genai-prices"
_MICROS: Final = Decimal(1_000_000)

# The package's ids of the providers that agent servers name. A provider that is not here may serve
# a model of a known name at its own price, or at none, as Ollama does: its price is unknown.
PROVIDERS: Final[Mapping[str, str]] = {
    "Anthropic": "anthropic",
    "AwsBedrock": "aws",
    "Azure": "azure",
    "Cerebras": "cerebras",
    "Cohere": "cohere",
    "DeepSeek": "deepseek",
    "Fireworks": "fireworks",
    "Google": "google",
    "Groq": "groq",
    "Mistral": "mistral",
    "Moonshot": "moonshotai",
    "OpenAI": "openai",
    "OpenRouter": "openrouter",
    "Perplexity": "perplexity",
    "Together": "together",
    "VertexAI": "google",
    "xAI": "x-ai",
}
_NAMES: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_input_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
}


class PublicPrices:
    """The prices of the installed package. Making one imports the package, which takes a while.
    Raises ImportError if the package is not installed."""

    def __init__(self) -> None:
        self._package = import_module("genai_prices")
        self.version = version(PACKAGE)

    def cost(self, used: Mapping[str, Any], timestamp: str) -> dict[str, Any] | None:
        """Return the `cost` of an `llm.usage`; None for a model without a known price."""
        model, provider = used.get("model"), used.get("provider")
        provider_id = PROVIDERS.get(provider) if provider else None
        known = model and {"input_tokens", "output_tokens"} <= used.keys()
        if not known or (provider and provider_id is None):
            return None
        counts = {theirs: used[ours] for ours, theirs in _NAMES.items() if ours in used}
        try:
            price = self._package.calc_price(
                self._package.Usage(**counts),
                model_ref=model,
                provider_id=provider_id,
                genai_request_timestamp=datetime.fromisoformat(timestamp),
            )
        except (LookupError, ValueError):
            return None
        micros = (price.total_price * _MICROS).to_integral_value(ROUND_HALF_EVEN)
        return {
            "micros": int(micros),
            "currency": "USD",
            "source": PACKAGE,
            "version": self.version,
        }
