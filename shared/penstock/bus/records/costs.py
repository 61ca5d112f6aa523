"""What runs used and cost."""

from __future__ import annotations

from pydantic import Field

from penstock.bus.records.base import Record


class CostRow(Record):
    """What one model used, or one tool cost, in a run on one day (UTC), in one currency."""

    day: str = Field(description="YYYY-MM-DD")
    model: str = Field("", description="Empty if the agent server names none")
    provider: str = Field("", description="Empty if the agent server names none")
    tool: str = Field("", description="The tool, in a row of calls that have a price")
    currency: str | None = Field(None, description="None for tokens without a known price")
    calls: int = Field(0, description="The model calls that were reported one by one")
    tool_calls: int = Field(0, description="The calls of tools that have a price")
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = Field(0, description="Tokens of which the server told only the sum")
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    micros: int = Field(0, description="The cost in millionths of the currency")
    without_price: int = Field(0, description="The number of events `llm.usage` without a cost")
    estimated: int = Field(0, description="The number of events `llm.usage` that are estimates")


class CostRecord(Record):
    """KV `costs`, key run id: what a run used and cost, the sum of its events `llm.usage` and of
    its `llm.tool_result` that have a cost."""

    run_id: str
    agent: str
    user_id: str
    session_id: str
    tenant: str | None = None
    parent_run_id: str | None = None
    last: int = Field(0, description="Stream sequence of the last event in it")
    sequence: int = Field(0, description="The number of this event in the run")
    last_tool: int = Field(0, description="As `last`, of the calls of tools")
    tool_sequence: int = Field(0, description="As `sequence`, of the calls of tools")
    rows: list[CostRow] = Field([])
