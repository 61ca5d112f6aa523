"""The approvals service: a person decides each pause once, and it is sent upstream at most once."""
