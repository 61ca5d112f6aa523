"""Ends or repairs runs that have lost source frames, events or commands."""
