"""Encodes canonical events into AG-UI events, in one of two field profiles."""

from penstock.dialects.agui.encode.encoder import AguiEncoder, Phase
from penstock.dialects.agui.encode.memory import prelude
from penstock.dialects.agui.encode.profiles import PROFILES, RUNS, STRICT, Profile

__all__ = ["PROFILES", "RUNS", "STRICT", "AguiEncoder", "Phase", "Profile", "prelude"]
