"""Fires rules at the times of their schedules, and for requests to their hooks."""
