"""Announces to runs and to workflows how their approvals begin and end."""
