"""Sends signed webhooks."""
