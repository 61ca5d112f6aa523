"""Announce to runs how their approvals end, and withdraw the approvals of ended runs."""
