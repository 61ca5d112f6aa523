"""What becomes of a request: votes are counted, and the policy or the deadline decides. Pure."""
