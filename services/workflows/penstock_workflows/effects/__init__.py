"""Carries out on the bus the effects that the engine decided. Each effect may be repeated."""
