"""The approvals service takes one decision for each pause and sends the decision to the agent
server at most once."""
