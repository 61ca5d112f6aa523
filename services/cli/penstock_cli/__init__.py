"""The command `penstock`, which runs every service in one process, and is the client for the
terminal."""
