"""What drives a test: clients, runs, waiting, checks, and the tables that tests go through."""
