"""The approvals service takes one decision for each pause and sends it upstream at most once."""
