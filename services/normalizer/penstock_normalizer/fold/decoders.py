"""Which decoder reads which protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.dialects.adk.decode import AdkDecoder
from penstock.dialects.agno.decode import AgnoDecoder
from penstock.dialects.agui.decode import AguiDecoder
from penstock.dialects.base import AgentFacts, Decoder

DECODERS: Mapping[str, Callable[[AgentFacts], Decoder]] = {
    "agno": AgnoDecoder,
    "adk": AdkDecoder,
    "agui": AguiDecoder,
}
