"""`make compare`: put servers to the same tests, and write docs/compared.md."""
