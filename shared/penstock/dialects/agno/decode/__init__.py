"""Frames of an Agno server become canonical drafts."""

from penstock.dialects.agno.decode.decoder import AgnoDecoder

__all__ = ["AgnoDecoder"]
