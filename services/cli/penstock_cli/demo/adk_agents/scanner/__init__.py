"""The app `scanner` of the demo ADK server."""
