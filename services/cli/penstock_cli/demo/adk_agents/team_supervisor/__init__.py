"""The app `team_supervisor` of the demo ADK server."""
