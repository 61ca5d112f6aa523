"""The executions dialect (executions-sse.md): six keys, and only documented data."""

from penstock.dialects.executions.encode import ExecutionsEncoder

__all__ = ["ExecutionsEncoder"]
