"""Finds the approvals that a person may see, and what the person needs in order to decide."""
