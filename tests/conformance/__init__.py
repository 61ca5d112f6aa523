"""The statements of each contract, and the tests that show that they hold.

Each document has one module of plain data. `test_conformance.py` compares these tables with the
existing tests, and `make contract` writes deploy/contract/conformance.md from the tables.
"""
