"""Adds up what runs used and cost, from the published events."""
