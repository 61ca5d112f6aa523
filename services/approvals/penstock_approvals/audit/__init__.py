"""Keeps the audit. Each run has an append-only chain of hashes, and anchors cover all chains.

`chain` defines the records, `verify` checks them, and `entries` makes records
from approvals; these modules do no I/O. `trail` and `anchors` write the records to the stream
AUDIT.
"""
