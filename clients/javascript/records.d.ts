// Made by `make contract` from the OpenAPI document: do not edit.

/** KV `approvals`, key approval id. */
export interface ApprovalRecord {
  approval_id: string;
  run_id: string;
  agent: string;
  /** The service that continues the run; without it, the connector */
  target?: string | null;
  session_id: string;
  user_id: string;
  /** As in the run's record */
  started_by?: string[] | null;
  leg: number;
  status?: string;
  digest: string;
  /** As in approval.requested. An answer over HTTP has `editable: false` also where the policy lets nobody change the arguments */
  items: Record<string, unknown>[];
  /** In a run with redactions where callers read, the items as others get them than those who decide. An answer over HTTP has them as `items`, or not at all */
  masked_items?: Record<string, unknown>[] | null;
  requested_at: string;
  updated_at: string;
  decision?: Decision | null;
  reason?: string | null;
  policy?: PolicyRef | null;
  /** What the policy says of each item */
  rulings?: ItemRuling[];
  /** A decider must fit each of these, or an escalation of it that was reached */
  deciders?: Deciders[];
  /** How many people must approve */
  need?: number;
  /** Who may decide by the step of a workflow, as in approval.requested */
  step_deciders?: Record<string, unknown> | null;
  /** How many must approve by the step of a workflow */
  step_need?: number;
  votes?: Vote[];
  remarks?: Remark[];
  /** The digest in approval.requested, if a vote has changed arguments */
  requested_digest?: string | null;
  /** The deadline, RFC 3339 */
  expires_at?: string | null;
  on_deadline?: string;
  /** Escalations and reminders, by time */
  escalations?: Escalation[];
  /** How many of the escalations were reached */
  escalated?: number;
  /** The W3C trace context with which the run was started */
  traceparent?: string | null;
}

/** One item's decision. */
export interface Decided {
  item_id: string;
  decision: string;
  note?: string | null;
  /** The answer to an input or external item */
  value?: unknown;
  /** The arguments with which the tool runs, if the decision changes them */
  args?: Record<string, unknown> | null;
  /** True if the deadline passed: nobody has rejected the item */
  expired?: boolean | null;
}

/** The caller that decides, as the caller has authenticated. */
export interface Decider {
  /** The caller itself, whoever it acts for */
  name: string;
  /** The caller's roles at that time */
  roles?: string[];
  /** The caller's scopes at that time */
  scopes?: string[];
  /** The way by which the decision came */
  channel?: string;
  /** The other user for whom the caller decides, if there is one */
  on_behalf_of?: string | null;
  /** The limits of a service token */
  limits?: DeciderLimits | null;
  /** The id of a service token or a link */
  token_id?: string | null;
  /** Who made the service token or the link */
  token_maker?: string | null;
}

/** What a service token may decide. An empty list limits nothing. */
export interface DeciderLimits {
  /** Ids of agents */
  agents?: string[];
  /** Names of tools, `*` for any text, as `get_*` */
  tools?: string[];
  /** Ids of the policy's rules */
  rules?: string[];
}

/** Who may decide: a person that has the scope, and a role or a name of the lists if any.

`requester` among the names means the user whose run asks. */
export interface Deciders {
  scope?: string;
  roles?: string[];
  users?: string[];
  /** These users may not decide */
  excluded?: string[];
}

/** The decision of an approval: its author, time and content. */
export interface Decision {
  outcome: string;
  /** The caller that decided, or `policy` */
  by: string;
  /** The caller as it was then; a decision restored from its event has none */
  decider?: Decider | null;
  at: string;
  automatic?: boolean;
  note?: string | null;
  items: Decided[];
  /** Identifies a repetition of it */
  idempotency_key?: string | null;
  /** ADK: the invocation that the decision named */
  invocation_id?: string | null;
}

/** The erasure of a run's content. */
export interface Erasure {
  /** Several runs may have the same one */
  id: string;
  by: string;
  at: string;
  reason?: string | null;
  /** The number of the run's event `system.erased` */
  sequence: number;
  receivers?: Receiver[];
  /** Whether the audit, from which nothing is deleted, has arguments */
  audit_has_details?: boolean;
  /** When all messages were deleted */
  erased_at?: string | null;
}

/** A time from which further people may decide, or at which a reminder is due. */
export interface Escalation {
  at: string;
  /** Who may decide, too; null for a reminder */
  to?: Deciders | null;
  /** The place in `deciders` of the group that these people stand in for; without it, they stand in for all groups */
  group?: number | null;
}

/** The run that a run repeats, and how much of it. */
export interface ForkedFrom {
  /** The run that is repeated */
  run_id: string;
  /** Its last event that the new run begins with; 0 for a whole repetition */
  sequence?: number;
}

/** A legal hold: the content of the run must not be erased. */
export interface Hold {
  by: string;
  at: string;
  reason?: string | null;
}

/** The rule that a policy applied to an item. */
export interface ItemRuling {
  item_id: string;
  rule_id: string;
  outcome: string;
  note?: string | null;
  /** The arguments that a decider may change */
  edit?: string[];
  /** Whether a person types the tool's name to approve */
  danger?: boolean;
}

/** The rule that a policy applied to an approval, and which policy it was. */
export interface PolicyRef {
  rule_id: string;
  version: number;
  /** SHA-256 of the whole policy */
  digest: string;
}

/** Who has got content of a run by a webhook. */
export interface Receiver {
  /** The rule's id */
  automation: string;
  /** The scheme and host of the address */
  url: string;
  /** When the last attempt was made, RFC 3339 */
  at: string;
}

/** What a person said about a waiting approval without deciding it. */
export interface Remark {
  kind: string;
  by: string;
  decider: Decider;
  at: string;
  text?: string | null;
  /** To whom the person has handed the approval over */
  to?: string | null;
  /** How many of the escalations were reached before */
  after?: number;
}

/** KV `runs`, key run id: a run as lists of runs show it.

The edge creates it (queued). From then on the normalizer updates it with the lifecycle events. */
export interface RunRecord {
  run_id: string;
  agent: string;
  session_id: string;
  user_id: string;
  /** The tenant of the caller that started the run, or of the rule's owner; absent without one */
  tenant?: string | null;
  /** The people behind the run besides `user_id`: the caller that started it for this user, the maker of the caller's service token, and the requesters of the run whose event led here. To an approvals policy, they are requesters, too */
  started_by?: string[] | null;
  /** The user's roles when the run was started, for the approvals policy */
  roles?: string[] | null;
  status?: string;
  /** The first 200 characters; of a workflow's run without a message, what its input says */
  message?: string;
  created_at: string;
  updated_at: string;
  /** Sequence of the last lifecycle event in it, which is stored some milliseconds later than the record */
  sequence?: number;
  legs?: number;
  /** Stream sequence of lifecycle.started */
  first_event?: number | null;
  /** The approval request that it waits for */
  approval_id?: string | null;
  code?: string | null;
  /** Without credentials and internal addresses */
  error?: string | null;
  summary?: string | null;
  /** The service that takes the run's commands; without it, the connector */
  target?: string | null;
  /** The workflow's run of which this is a step, or whose event led here */
  parent_run_id?: string | null;
  /** The parent's step that this run carries out */
  step_id?: string | null;
  /** How many workflows this run is inside of: 1 for a step of an outer one */
  workflow_depth?: number | null;
  /** The run that this run repeats */
  forked_from?: ForkedFrom | null;
  /** Texts by which lists are filtered, from the start or the rule */
  tags?: Record<string, unknown> | null;
  /** The first run of those that led to this run; absent if no run led to it */
  root_run_id?: string | null;
  /** The ids of the automation rules that led to this run, the first one first */
  automations?: string[] | null;
  /** How many automation rules led to this run */
  depth?: number | null;
  /** The ids of the budgets that applied when the run was started */
  budgets?: string[] | null;
  /** The version of the redactions that apply to the run's content; its source frames are then shown to nobody, unless all of them only mask it */
  redactions?: number | null;
  /** Whether all or some of them only mask what callers without the scope pii read */
  masked?: string | null;
  /** The workflows' runs around the run, the outermost one first */
  ancestors?: string[] | null;
  /** The original `error` and `detail` of a failed run, where they were redacted: only for callers with the scope administer */
  unredacted?: Record<string, unknown> | null;
  hold?: Hold | null;
  /** From then on, nobody gets content of the run, and the record has none */
  erasure?: Erasure | null;
}

/** One person's decision. An approval that needs several people has several votes. */
export interface Vote {
  by: string;
  decider: Decider;
  at: string;
  /** The digest of what the person decided about */
  digest: string;
  items: Decided[];
  note?: string | null;
  idempotency_key?: string | null;
  /** The trace context of the caller's request */
  traceparent?: string | null;
  /** A later vote has changed what is to be approved, or it was taken back */
  void?: boolean;
  /** When the person took the vote back; nothing of it counts from then on */
  taken_back?: string | null;
}
