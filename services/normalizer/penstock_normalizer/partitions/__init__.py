"""One partition of RAW: read it in order, hand its frames to runs, keep the checkpoint."""
