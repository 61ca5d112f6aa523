"""The records of Penstock's API. Made by `make contract` from the OpenAPI document: do not edit.

A later server may send further fields, and further words where a field has a list of words.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class ApprovalRecord(TypedDict):
    approval_id: str
    run_id: str
    agent: str
    target: NotRequired[Literal["connector", "workflows"] | None]
    session_id: str
    user_id: str
    started_by: NotRequired[list[str] | None]
    leg: int
    status: NotRequired[Literal["pending", "decided", "withdrawn", "expired"]]
    digest: str
    items: list[dict[str, Any]]
    masked_items: NotRequired[list[dict[str, Any]] | None]
    requested_at: str
    updated_at: str
    decision: NotRequired[Decision | None]
    reason: NotRequired[str | None]
    policy: NotRequired[PolicyRef | None]
    rulings: NotRequired[list[ItemRuling]]
    deciders: NotRequired[list[Deciders]]
    need: NotRequired[int]
    step_deciders: NotRequired[dict[str, Any] | None]
    step_need: NotRequired[int]
    votes: NotRequired[list[Vote]]
    remarks: NotRequired[list[Remark]]
    requested_digest: NotRequired[str | None]
    expires_at: NotRequired[str | None]
    on_deadline: NotRequired[Literal["reject", "approve", "leave"]]
    escalations: NotRequired[list[Escalation]]
    escalated: NotRequired[int]
    traceparent: NotRequired[str | None]


class Decided(TypedDict):
    item_id: str
    decision: Literal["approve", "reject"]
    note: NotRequired[str | None]
    value: NotRequired[Any]
    args: NotRequired[dict[str, Any] | None]
    expired: NotRequired[bool | None]


class Decider(TypedDict):
    name: str
    roles: NotRequired[list[str]]
    scopes: NotRequired[list[str]]
    channel: NotRequired[
        Literal[
            "api",
            "link",
            "page",
            "agui",
            "adk",
            "agno",
            "vercel",
            "openai",
            "a2a",
            "cli",
            "automation",
            "policy",
        ]
    ]
    on_behalf_of: NotRequired[str | None]
    limits: NotRequired[DeciderLimits | None]
    token_id: NotRequired[str | None]
    token_maker: NotRequired[str | None]


class DeciderLimits(TypedDict):
    agents: NotRequired[list[str]]
    tools: NotRequired[list[str]]
    rules: NotRequired[list[str]]


class Deciders(TypedDict):
    scope: NotRequired[str]
    roles: NotRequired[list[str]]
    users: NotRequired[list[str]]
    excluded: NotRequired[list[str]]


class Decision(TypedDict):
    outcome: Literal["approved", "rejected", "mixed"]
    by: str
    decider: NotRequired[Decider | None]
    at: str
    automatic: NotRequired[bool]
    note: NotRequired[str | None]
    items: list[Decided]
    idempotency_key: NotRequired[str | None]
    invocation_id: NotRequired[str | None]


class Erasure(TypedDict):
    id: str
    by: str
    at: str
    reason: NotRequired[str | None]
    sequence: int
    receivers: NotRequired[list[Receiver]]
    audit_has_details: NotRequired[bool]
    erased_at: NotRequired[str | None]


class Escalation(TypedDict):
    at: str
    to: NotRequired[Deciders | None]
    group: NotRequired[int | None]


class ForkedFrom(TypedDict):
    run_id: str
    sequence: NotRequired[int]


class Hold(TypedDict):
    by: str
    at: str
    reason: NotRequired[str | None]


class ItemRuling(TypedDict):
    item_id: str
    rule_id: str
    outcome: Literal["approve", "reject", "ask"]
    note: NotRequired[str | None]
    edit: NotRequired[list[str]]
    danger: NotRequired[bool]


class PolicyRef(TypedDict):
    rule_id: str
    version: int
    digest: str


class Receiver(TypedDict):
    automation: str
    url: str
    at: str


class Remark(TypedDict):
    kind: Literal["question", "answer", "handover"]
    by: str
    decider: Decider
    at: str
    text: NotRequired[str | None]
    to: NotRequired[str | None]
    after: NotRequired[int]


class RunRecord(TypedDict):
    run_id: str
    agent: str
    session_id: str
    user_id: str
    tenant: NotRequired[str | None]
    started_by: NotRequired[list[str] | None]
    roles: NotRequired[list[str] | None]
    status: NotRequired[Literal["queued", "running", "paused", "completed", "failed", "cancelled"]]
    message: NotRequired[str]
    created_at: str
    updated_at: str
    sequence: NotRequired[int]
    legs: NotRequired[int]
    first_event: NotRequired[int | None]
    approval_id: NotRequired[str | None]
    code: NotRequired[str | None]
    error: NotRequired[str | None]
    summary: NotRequired[str | None]
    target: NotRequired[Literal["connector", "workflows"] | None]
    parent_run_id: NotRequired[str | None]
    step_id: NotRequired[str | None]
    workflow_depth: NotRequired[int | None]
    forked_from: NotRequired[ForkedFrom | None]
    tags: NotRequired[dict[str, str] | None]
    root_run_id: NotRequired[str | None]
    automations: NotRequired[list[str] | None]
    depth: NotRequired[int | None]
    budgets: NotRequired[list[str] | None]
    redactions: NotRequired[int | None]
    masked: NotRequired[Literal["all", "some"] | None]
    ancestors: NotRequired[list[str] | None]
    unredacted: NotRequired[dict[str, str] | None]
    hold: NotRequired[Hold | None]
    erasure: NotRequired[Erasure | None]


class Vote(TypedDict):
    by: str
    decider: Decider
    at: str
    digest: str
    items: list[Decided]
    note: NotRequired[str | None]
    idempotency_key: NotRequired[str | None]
    traceparent: NotRequired[str | None]
    void: NotRequired[bool]
    taken_back: NotRequired[str | None]
