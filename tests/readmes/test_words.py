"""The documents for readers stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from readmes.words import DOCUMENTS, READMES, counts, words
from support.drive.repository import ROOT

MAX_WORDS_OF_READMES = 14_300
# 1,600 more than before docs/costs.md, which operators need to check what they pay for, and to know
# what is shared between tenants. 600 more for docs/idempotent-tools.md and docs/clients.md, and 900
# for docs/clients/vercel.md, most of it code that front-end developers copy.
# 1,300 for docs/budgets.md, a document of the operator, and how each kind of server is stopped.
# 1,800 for the pages of A2A, of which one is for those who implement the extension elsewhere.
# 800 for docs/clients/openai.md, a third of it code.
# 1,300 for the pages of docs/clients that are for no protocol of their own, and their table.
# 150 for the accounts of budgets, over HTTP and in the terminal.
# 100 for the push notifications of A2A, and for what two tests of its kit have wrong.
# 100 for the functions of expressions.
# 100 for what administrators see over HTTP, and for dangerous calls.
# 250 for a page with `useChat` that also asks for values, and how to set it up.
# 700 for docs/operate/sign-in.md and for the tags of runs in docs/clients.md.
# 450 for docs/automations.md: rules for Slack, Teams and GitHub, most of it code to copy.
# 950 for docs/coming-from/webhooks.md: thirty rules that a test runs, half of it code.
# 70 for the filters and the export in docs/approvals.md.
# 570 for waits and the lone frame in docs/measured.md.
# 350 for four providers in docs/operate/sign-in.md, half of it settings to copy.
# 1,670 for docs/coming-from/workflows.md: forty workflows that a test runs, most of it code.
# 320 for templates, calls and tests in docs/workflows.md, a third of it code.
# 640 for docs/coming-from/approvals.md: twenty policies that a test runs, half of it code.
# 300 for reminders, votes taken back, questions, handovers, absences and trials of a policy.
# 630 for docs/console.md: what to do where, keys and numbers; and for the address of a trace.
# 450 for rounds, turns, schedules and deciders of workflows, a third of it an example.
# 340 for a compiled core, memory and starts in docs/measured.md.
# 60 for circles of keys, for runs that are too large as one object, and for an alert.
# 140 for how a long run is opened, what must be seen before a decision, and who made a link.
# 340 for the messages of a frame in docs/measured.md.
# 800 for docs/privacy.md: what an erasure promises, and where bytes stay.
# 880 for docs/privacy.md, which a data-protection officer reads: what is promised, and what is not.
# 310 for docs/compared.md: how other servers were killed, and what its figures mean.
# 660 for docs/privacy.md: what is sealed in NATS, what is not, and how its keys are kept.
# 480 for sealed content and missed aims in docs/measured.md, and for docs/compared.md.
# 500 for checkers of redactions in docs/privacy.md, a third of it code.
# 400 for grants of subscribers in docs/subscribe.md and docs/privacy.md.
# 530 for docs/privacy.md and docs/operate/backup.md: retention, and what a restore is told.
# 80 for several statuses, health, and what the last hour cost.
# 70 for docs/privacy.md: content in clear is refused, and how an installation is switched over.
# 150 for docs/privacy.md: what a search of all files and memory finds after an erasure.
# 140 for what people review in docs/privacy.md.
# 350 for docs/privacy.md: a key service that opens content keys, and what losses do to erasures.
# 120 for what a checker, a search, an erasure and ages of PENSTOCK_KEEP do on a bad day.
# 125 for the pages of clients: what was tried over what, and the response that follows a pause.
# 340 for all aims of speed in docs/measured.md, met or missed.
# 440 for docs/privacy.md: by which way what is masked leaves whole, and for whom.
# 35 for docs/privacy.md: what a search of a cluster finds.
# 110 for Presidio in docs/privacy.md, half of it code, and for the memory of accounts.
# 70 for what masks of workflows and forks do, and the seeds of chaos.
MAX_WORDS = 70_470
RECORDS = sorted((ROOT / "docs/decisions").glob("0*.md"))


@pytest.mark.parametrize(
    ("patterns", "limit"), [(READMES, MAX_WORDS_OF_READMES), (DOCUMENTS, MAX_WORDS)]
)
def test_the_documents_keep_within_their_words(patterns: tuple[str, ...], limit: int) -> None:
    found = counts(patterns)
    longest = list(found.items())[:8]
    assert sum(found.values()) <= limit, f"shorten one of these, or move a decision: {longest}"


def test_the_words_of_a_generated_table_are_not_counted() -> None:
    readme = ROOT / "services/normalizer/README.md"
    assert "PENSTOCK_PARTITION_TTL_S" in readme.read_text("utf-8")
    assert words(readme) < len(readme.read_text("utf-8").split()) - 100


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name)
def test_a_decision_has_a_number_a_title_and_three_short_paragraphs(record: Path) -> None:
    text = record.read_text("utf-8")
    number = record.name[:4]
    assert re.match(rf"# {number}: \S", text), f"the title is not `# {number}: …`"
    for heading in ("**Context.**", "**Decision.**", "**Consequence.**"):
        assert heading in text, f"{heading} is missing"
    assert len(text.split()) <= 270


def test_no_two_decisions_have_the_same_number() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert sorted(set(numbers)) == numbers


def test_the_index_of_the_documents_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/operate").glob("*.md")]
    names = {str(page.relative_to(ROOT / "docs")) for page in pages} - {"README.md"}
    assert [name for name in sorted(names) if f"({name})" not in index] == []
