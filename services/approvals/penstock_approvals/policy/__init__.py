"""Reads and applies the policy, which says who decides, on which terms, and what is decided
automatically.

Pure.

`parse` reads a policy. `Policy.outcome_of` applies a policy to a pause: the items for whose
decision a run waits. The resulting terms are kept in the approval's record. `may_see` and
`may_decide` apply the terms in the record.
"""

from penstock_approvals.policy.deciding_rights import (
    earlier_vote,
    may_decide,
    may_see,
    person_of,
    voter_of,
)
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
    "earlier_vote",
    "from_value",
    "may_decide",
    "may_see",
    "parse",
    "person_of",
    "voter_of",
]
