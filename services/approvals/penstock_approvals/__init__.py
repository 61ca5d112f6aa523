"""The approvals service takes one decision for each request for approval, and sends the decision to
the agent server at most once."""
