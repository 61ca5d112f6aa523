"""Carries out the commands that the connector gets: start, continue and cancel."""
