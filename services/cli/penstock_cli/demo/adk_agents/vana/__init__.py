"""The app `vana` of the demo ADK server."""
