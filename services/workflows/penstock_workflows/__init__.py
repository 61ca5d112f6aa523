"""The workflows service carries out workflows: runs that are made of runs."""
