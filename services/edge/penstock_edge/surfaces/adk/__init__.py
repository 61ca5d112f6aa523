"""The surface of adk-streaming.md, and what ADK's own clients call."""
