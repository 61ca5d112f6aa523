"""Reads and applies the policy: who decides, on which terms, and what is decided automatically.

Pure. `document.parse` reads a policy. `rulings.Policy` applies it to a pause: the items for whose
decision a run waits. The resulting terms are kept in the approval's record, to which
`deciding_rights` applies them.
"""
