"""Cancels and decides runs, finds their approvals and pauses, and checks what a caller may do."""
