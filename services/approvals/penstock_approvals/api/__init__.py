"""Serves the routes of approvals, of their changes, of one-time links, and of the policy."""
