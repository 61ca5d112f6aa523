"""Reads a partition of RAW in order, gives the frames to runs, and stores the checkpoint."""
