"""End or repair runs that have lost source frames, events or commands."""
