"""Starts runs and decides approvals on behalf of users. Several services use this package.

If a request is refused, the functions raise `Problem` with the HTTP status and a text for people.
"""
