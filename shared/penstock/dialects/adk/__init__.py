"""Google ADK's `/run_sse` stream: its events to canonical drafts."""

from penstock.dialects.adk.decode import AdkDecoder

__all__ = ["AdkDecoder"]
