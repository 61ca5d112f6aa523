"""Lists the protocols of agent servers with their decoders.

A new protocol needs one row in this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.dialects.adk.decode.decoder import AdkDecoder
from penstock.dialects.agno.decode.decoder import AgnoDecoder
from penstock.dialects.agui.decode.decoder import AguiDecoder
from penstock.dialects.base import AgentFacts, Decoder
from penstock.dialects.workflow import PROTOCOL, WorkflowDecoder

# The keys are the values of `AgentConfig.protocol`.
DECODERS: Final[Mapping[str, Callable[[AgentFacts], Decoder]]] = {
    "agno": AgnoDecoder,
    "adk": AdkDecoder,
    "agui": AguiDecoder,
    PROTOCOL: WorkflowDecoder,
}
