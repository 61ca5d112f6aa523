"""Starts runs and decides approvals on behalf of users. Several services use this package.

The functions raise `Problem` for a refusal, with the HTTP status and a text for people.
"""
