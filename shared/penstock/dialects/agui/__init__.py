"""AG-UI: the protocol of agent frontends, spoken to clients and understood from servers."""

from penstock.dialects.agui.encode import AguiEncoder, Phase
from penstock.dialects.agui.prelude import prelude
from penstock.dialects.agui.profiles import PROFILES, RUNS, STRICT, Profile

__all__ = ["PROFILES", "RUNS", "STRICT", "AguiEncoder", "Phase", "Profile", "prelude"]
