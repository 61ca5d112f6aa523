"""Events of an AG-UI server become canonical drafts."""

from penstock.dialects.agui.decode.decoder import AguiDecoder

__all__ = ["AguiDecoder"]
