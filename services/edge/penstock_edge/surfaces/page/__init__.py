"""The surface that serves the first page and `/docs` as static files."""
