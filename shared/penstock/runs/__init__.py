"""Starts runs and decides approvals, for every service that does so on behalf of a user.

A caller gets a `Problem` for a refusal, with the HTTP status and a text for people.
"""
