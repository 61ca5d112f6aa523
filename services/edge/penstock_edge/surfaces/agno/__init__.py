"""The surface that serves agno-events.md to Agno's clients."""
