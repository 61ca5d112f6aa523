"""Approvals: one decision for each pause, by a person, sent upstream at most once."""
