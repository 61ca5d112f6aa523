"""Serves /v1/workflows: definitions, and starts of runs."""
