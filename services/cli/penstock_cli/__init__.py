"""`penstock`: every service in one process, and the terminal client."""
