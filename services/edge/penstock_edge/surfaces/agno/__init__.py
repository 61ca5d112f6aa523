"""The surface of agno-events.md, for Agno's clients."""
