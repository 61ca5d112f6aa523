"""What each contract says, statement by statement, and the tests that show it.

One module a document, as plain data; `test_conformance.py` holds the tables to the tests that
there are, and deploy/contract/conformance.md is made of them (`make contract`).
"""
