"""Decodes the events of an AG-UI server into canonical drafts."""

from penstock.dialects.agui.decode.decoder import AguiDecoder

__all__ = ["AguiDecoder"]
