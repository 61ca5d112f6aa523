"""Workflows on a deployment with real agent servers."""
