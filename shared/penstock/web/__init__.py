"""Shared code of the services that serve HTTP."""
