"""The executions contract (executions-sse.md): six keys, and documented data alone."""

from penstock.dialects.executions.encode import ExecutionsEncoder

__all__ = ["ExecutionsEncoder"]
