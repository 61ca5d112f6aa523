"""Views: what a client reads of a run, in which dialect, and the position of each frame. Pure."""
