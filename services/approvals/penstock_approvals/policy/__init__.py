"""Reads and applies the policy: who decides, on which terms, and what is automatic. Pure.

`parse` reads a policy, `Policy.outcome_of` applies the policy to a pause, and `may_see` and
`may_decide` apply the terms that an approval's record keeps.
"""

from penstock_approvals.policy.access import may_decide, may_see, person_of
from penstock_approvals.policy.document import InvalidPolicy, Mistake, from_value, parse
from penstock_approvals.policy.edits import NotEditable, check_edit
from penstock_approvals.policy.model import BUILTIN, Document
from penstock_approvals.policy.rulings import Policy, Question, Ruling

__all__ = [
    "BUILTIN",
    "Document",
    "InvalidPolicy",
    "Mistake",
    "NotEditable",
    "Policy",
    "Question",
    "Ruling",
    "check_edit",
    "from_value",
    "may_decide",
    "may_see",
    "parse",
    "person_of",
]
