"""Budgets: what runs may use of money, tokens, calls and time.

The operator writes budgets in one document (`model`, `document`). A start is admitted or refused
where its command is written (`admission`). What runs have used of a budget is added up in accounts
(`account` is pure, `accounts` reads and writes KV `budgets`).
"""
