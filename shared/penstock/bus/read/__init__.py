"""Reading streams: direct gets, following a run, pull consumers."""
