"""Keeps the records of approvals and the current policy in KV."""
