"""A model of how connectors divide runs, and its explorer: see the README."""
