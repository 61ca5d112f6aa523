"""The first page and `/docs`: static files."""
