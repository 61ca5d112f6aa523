"""Decodes the frames of an ADK server into canonical drafts."""

from penstock.dialects.adk.decode.decoder import AdkDecoder

__all__ = ["AdkDecoder"]
