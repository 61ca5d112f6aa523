"""Redactions: what is taken out of the content of a run, such as e-mail addresses, before it is
stored as events.

The operator writes rules in one document (`document`). A run has the rules that are in force when
it starts. `scanner` finds what the rules name, also where it is spread over several pieces of a
text; `patterns` and `kinds` say what is searched. All but `document` is pure.
"""
