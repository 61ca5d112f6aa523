"""Decodes the frames of an Agno server into canonical drafts."""

from penstock.dialects.agno.decode.decoder import AgnoDecoder

__all__ = ["AgnoDecoder"]
