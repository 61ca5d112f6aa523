"""The executions dialect (executions-sse.md): frames with six keys and documented data."""

from penstock.dialects.executions.encode import ExecutionsEncoder

__all__ = ["ExecutionsEncoder"]
