"""Reads a partition of RAW in order, gives its frames to runs, and stores its checkpoint."""
