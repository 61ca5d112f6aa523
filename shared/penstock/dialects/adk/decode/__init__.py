"""Frames of an ADK server become canonical drafts."""

from penstock.dialects.adk.decode.decoder import AdkDecoder

__all__ = ["AdkDecoder"]
