"""The command `penstock`: it runs every service in one process, and is the terminal client."""
