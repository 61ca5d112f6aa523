"""The surface that serves adk-streaming.md, and the other endpoints that ADK's own clients call."""
