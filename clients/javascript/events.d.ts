// Made by `make contract` from the models in penstock.events: do not edit.
//
// A reader must accept what it does not know: later versions add types and fields. So treat what
// arrives as an `Envelope`, and narrow it by its type:
//
//   const isType = <T extends EventType>(event: Envelope, type: T): event is EventOf<T> =>
//     `${event.event.category}.${event.event.action}` === type;

/** A budget of which a share is used. */
export interface BudgetReached {
  /** The budget's id. */
  budget: string;
  /** What has an account of its own: `run`, `user`, … */
  per: string;
  /** What is used: `cost`, `tokens`, `tool_calls`, `model_calls`, `time` or `same_call`. */
  dimension: string;
  /** What is used: millionths of the currency, seconds, or a number. */
  used: number;
  /** What may be used, with what people have added. */
  limit: number;
  /** The share of the limit that the budget names. */
  share: number;
  /** The currency of a cost. */
  currency?: string | null;
  /** When the account begins anew: RFC 3339, UTC. */
  window_ends_at?: string | null;
}

/** What a call of a model or of a tool cost, when it was made. */
export interface Cost {
  /** The cost in millionths of the currency. */
  micros: number;
  /** The currency: ISO 4217, such as `USD`. */
  currency: string;
  /** Where the price is from: `table`, the operator's, or `genai-prices`. */
  source: string;
  /** The version of the prices. */
  version: string;
}

/** The decision on one item. */
export interface DecidedItem {
  /** The item's id. */
  item_id: string;
  /** The decision: `approve` or `reject`. */
  decision: string;
  /** A note of the decider about this item. */
  note?: string | null;
  /** The value of the answer, where the item asked for one. */
  value?: unknown;
  /** The arguments of the call, where the decision changed them. */
  args?: Record<string, unknown> | null;
  /** True where the deadline passed, and nobody rejected the item. */
  expired?: boolean | null;
}

/** One document that was found. */
export interface Document {
  /** The document's id in its store. */
  id: string;
  /** How well the document matches; a higher score is better. */
  score?: number | null;
  /** The text that was found. */
  content: string;
  /** The document's title. */
  title?: string | null;
  /** The document's address. */
  url?: string | null;
}

/** An error as an object. */
export interface ErrorInfo {
  /** A short name of the error. */
  code: string;
  /** A description of the error for people. */
  message: string;
  /** Whether another attempt may succeed. */
  retryable?: boolean | null;
  /** The HTTP status, if there was one. */
  status_code?: number | null;
  /** Further details of the error. */
  detail?: unknown;
}

/** The people who may decide, too. Two empty lists mean everybody with the policy's scope. */
export interface EscalatedTo {
  /** Roles, of which a person needs one. */
  roles: string[];
  /** Users, by name. */
  users: string[];
}

/** The type of an event, as category and action. */
export interface EventName {
  /** The category of the event, such as `lifecycle`, `llm` or `approval`. */
  category: string;
  /** What happened, within the category. */
  action: string;
}

/** The run that a run repeats, and how much of it. */
export interface ForkedFrom {
  /** The run that is repeated. */
  run_id: string;
  /** Its last event that the new run begins with; 0 for a whole repetition. */
  sequence: number;
}

/** What redactions took out of a field. */
export interface Redacted {
  /** The field of `data`, such as `content`. */
  field: string;
  /** `email`, `card`, …, or `pattern` for one of the operator's own. */
  kind: string;
  /** How many matches were taken out. */
  count: number;
}

/** One item that needs a decision. */
export interface RequestedItem {
  /** The item's id, unique in the approval. */
  item_id: string;
  /** The kind of the item: `confirmation`, `input`, `external`, `credential`, `feedback`, `selection`, `review`, `long_running` or `budget`. */
  kind: string;
  /** The SHA-256 of the item as hexadecimal digits, to which a decision is bound. */
  digest: string;
  /** The tool call that waits for the decision. */
  tool_call_id?: string | null;
  /** The tool that would run. */
  tool?: string | null;
  /** The arguments with which the tool would run. */
  args?: Record<string, unknown> | null;
  /** A description of the request for people. */
  description?: string | null;
  /** The JSON Schema of the value that an answer must contain. */
  input_schema?: Record<string, unknown> | null;
  /** The options that an answer may choose from. */
  options?: unknown[] | null;
  /** Whether the agent's server takes changed arguments. The policy may still forbid them: `editable` of the approval that a decider reads says both. */
  editable: boolean;
  /** The inner run that waits. */
  subrun?: Subrun | null;
}

/** One document that was found. */
export interface RetrievedDocument {
  /** The document's id in its store. */
  id: string;
  /** How well the document matches, or null; a higher score is better. */
  score: number | null;
  /** The text that was found. */
  content: string;
}

/** The owner of a session and its workflow. */
export interface SessionMetadata {
  /** The user who owns the run. */
  user_id: string;
  /** The workflow, or the agent's id for a run without one. */
  workflow: string;
}

/** The agent that an event comes from. */
export interface Source {
  /** The agent's id in Penstock's configuration, or the upstream's id of it. */
  agent_id: string;
  /** `agent`, `team` or `workflow` for the outer run, `worker` for an agent inside it. In Penstock's workflows also `global_supervisor` and `team_supervisor`. */
  agent_type: string;
  /** The agent's name for people. */
  agent_name: string;
  /** The team that the agent works in, or null. */
  team_name: string | null;
}

/** The inner run that an event belongs to, such as that of a team's member. */
export interface Subrun {
  /** The inner run's id, as the upstream gives it. */
  id: string;
  /** The id of the run that contains it, where that is not the outer run. */
  parent_id?: string | null;
  /** The name of the agent that works in it. */
  name?: string | null;
}

/** Where a fork's output of a step comes from. */
export interface TakenFrom {
  /** The workflow's run in which the step was done. */
  run_id: string;
  /** The id of the run that did the step, if there was one. */
  child_run_id?: string | null;
}

/** Tokens that the models of a run used, as far as the upstream reports them. */
export interface Usage {
  /** The number of tokens that the models read. */
  input_tokens?: number | null;
  /** The number of tokens that the models wrote. */
  output_tokens?: number | null;
  /** The number of all tokens. */
  total_tokens?: number | null;
  /** The number of tokens of the models' reasoning. */
  reasoning_tokens?: number | null;
  /** The number of tokens that were read from a cache. */
  cached_input_tokens?: number | null;
}

/** What a workflow came to. */
export interface WorkflowResult {
  /** A summary for people. */
  summary: string;
  /** The result as JSON, where it has no summary. */
  value?: unknown;
}

/** One canonical event, of a type that this version knows or of a later one. */
export interface Envelope {
  /** The run's id, a UUIDv7 that Penstock made (a UUIDv8 in further shards). */
  run_id: string;
  /** When the connector received the event: RFC 3339, UTC, with milliseconds. It never decreases within a run. */
  timestamp: string;
  /** The number of the event in its run: 1, 2, 3 … without gaps. */
  sequence: number;
  /** The agent that the event comes from; null for an event of Penstock itself. */
  source: Source | null;
  /** The category and the action of the event. */
  event: EventName;
  /** The fields of the event's type. */
  data: Record<string, unknown>;
  /** The session (conversation, thread) of the run. It is always there on the bus; the executions dialect has the fields above only. */
  session_id?: string | null;
  /** The number of the upstream request that the event comes from: 1 is the start, and each continue is one more. It is always there on the bus. */
  leg?: number | null;
  /** The number of the attempt, above 1 where the event was produced again after a failure. */
  attempt?: number | null;
  /** The id of the run that started this one: a workflow's run of which this run is a step, or the run whose event led to this run. */
  parent_run_id?: string | null;
  /** The id of the workflow step that the event belongs to: a step of the agent server's own workflow, else the step of the parent's workflow that this run carries out. */
  step_id?: string | null;
  /** How many workflows of Penstock the run is inside of: 1 for a step of an outer workflow. Other runs have none. */
  workflow_depth?: number | null;
  /** The inner run that the event belongs to. */
  subrun?: Subrun | null;
  /** What the operator's redactions took out of `data`, where they did. */
  redactions?: Redacted[] | null;
}

/** A run was accepted. The event has always sequence 1 and precedes the upstream's answer. */
export interface LifecycleStarted extends Envelope {
  event: {
    category: "lifecycle";
    action: "started";
  };
  data: {
    /** The agent's id in the configuration. */
    agent: string;
    /** The user who owns the run. */
    user_id: string;
    /** The tenant for which the run counts, if there are tenants. */
    tenant?: string | null;
    /** The message that started the run. */
    message?: string | null;
    /** The name of the workflow, where the run is one of Penstock's. */
    workflow?: string | null;
    /** The idempotency key of the start, if it had one. */
    idempotency_key?: string | null;
    /** The run that this run repeats, if it repeats one. */
    forked_from?: ForkedFrom | null;
    /** The tags that the start gave the run. */
    tags?: Record<string, unknown> | null;
    /** The version of the operator's redactions, where some apply to the run. */
    redactions?: number | null;
  };
}

/** The run waits for a person. */
export interface LifecyclePaused extends Envelope {
  event: {
    category: "lifecycle";
    action: "paused";
  };
  data: {
    /** The reason for the pause: `approval_required`. */
    reason: string;
    /** The approval that the run waits for. */
    approval_id: string;
    /** The deadline of the decision: RFC 3339, UTC. */
    expires_at?: string | null;
    /** The number of people who must agree, where it is not one. */
    deciders_required?: number | null;
    /** The policy's rule and version, such as `payments@7`. */
    policy?: string | null;
  };
}

/** A paused run goes on. The event follows a `lifecycle.paused`. */
export interface LifecycleResumed extends Envelope {
  event: {
    category: "lifecycle";
    action: "resumed";
  };
  data: {
    /** The approval that was decided. */
    approval_id?: string | null;
    /** The upstream's id of the run that continues. */
    upstream_run_id?: string | null;
  };
}

/** A piece of work failed and is tried again. */
export interface LifecycleRetrying extends Envelope {
  event: {
    category: "lifecycle";
    action: "retrying";
  };
  data: {
    /** The number of the retry that follows; the first is 1. */
    retry_count: number;
    /** The number of retries that are allowed. */
    max_retries: number;
    /** What failed. */
    reason: string;
    /** The name of the step that is tried again. */
    step?: string | null;
  };
}

/** The run ended successfully. Terminal. */
export interface LifecycleCompleted extends Envelope {
  event: {
    category: "lifecycle";
    action: "completed";
  };
  data: {
    /** The final text of the run. */
    summary: string;
    /** The whole answer, where it differs from the summary. */
    content?: string | null;
    /** The structured output, as JSON. */
    value?: unknown;
    /** The type of `value` or `content`, as the upstream names it. */
    content_type?: string | null;
    /** The number of tokens that the run used. */
    usage?: Usage | null;
    /** Figures that the upstream reports about the run. */
    metrics?: Record<string, unknown> | null;
    /** The state of the session at the end of the run. */
    session_state?: unknown;
  };
}

/** The run ended with an error. Terminal. */
export interface LifecycleFailed extends Envelope {
  event: {
    category: "lifecycle";
    action: "failed";
  };
  data: {
    /** What went wrong, in the upstream's own words if it had any, without credentials and addresses of internal machines. */
    error: string;
    /** `not_sent` (nothing was sent to the agent server, so a new run repeats nothing), `upstream_lost` (the run had begun), `upstream_http`, `not_a_stream`, `upstream_error`, `timeout`, `outcome_unknown`, `history_lost`, `limit`, `not_accepted` or `internal`. */
    code: string;
    /** The upstream's class of error. */
    error_type?: string | null;
    /** The step that failed. */
    step?: string | null;
    /** The HTTP status of the upstream's answer. */
    status_code?: number | null;
    /** Further details of the error. */
    detail?: unknown;
    /** Whether a new run may succeed. */
    retryable?: boolean | null;
  };
}

/** The run was cancelled. Terminal. */
export interface LifecycleCancelled extends Envelope {
  event: {
    category: "lifecycle";
    action: "cancelled";
  };
  data: {
    /** The reason: `user_stop`, `superseded` (a later start of the session interrupted the run), `shutdown`, `approval_expired`, `budget`, or `blocked` (by a redaction). */
    reason: string;
    /** The user who cancelled the run. */
    by?: string | null;
    /** The budget that was used up, where one has ended the run. */
    budget?: BudgetReached | null;
    /** The step that was running. */
    step?: string | null;
    /** Whether the agent server stopped: it accepted the cancel and ended its stream, closing the connection is its cancel, or it was never called. False: it did not accept the cancel, or did not answer, and may go on working. */
    confirmed: boolean;
  };
}

/** A message begins. The event precedes its first text. */
export interface LlmMessageStarted extends Envelope {
  event: {
    category: "llm";
    action: "message_started";
  };
  data: {
    /** The message's id, unique in the run. */
    message_id: string;
    /** The role of the speaker, such as `assistant`. */
    role: string;
    /** The name of the speaker. */
    name?: string | null;
  };
}

/** A piece of a message's text. */
export interface LlmStream extends Envelope {
  event: {
    category: "llm";
    action: "stream";
  };
  data: {
    /** The next piece of the text; it is never empty. */
    content: string;
    /** The message that the piece belongs to. */
    message_id: string;
  };
}

/** A message is complete. */
export interface LlmMessageCompleted extends Envelope {
  event: {
    category: "llm";
    action: "message_completed";
  };
  data: {
    /** The message's id. */
    message_id: string;
    /** The role of the speaker, such as `assistant`. */
    role: string;
    /** The whole text of the message. */
    content: string;
    /** The structured output, as JSON. */
    value?: unknown;
    /** The type of `value` or `content`, as the upstream names it. */
    content_type?: string | null;
    /** The sources that the message cites. */
    citations?: Record<string, unknown> | null;
    /** The parts of the message that are not text. */
    parts?: unknown[] | null;
    /** How the message ended, as the upstream names it. */
    status?: string | null;
    /** The kind of the result, as the upstream names it. */
    result_type?: string | null;
    /** The main points of the message. */
    key_points?: unknown[] | null;
    /** Actions that the agent suggests to the user. */
    suggested_actions?: unknown[] | null;
    /** A description of how to show the message. */
    ui_schema?: Record<string, unknown> | null;
    /** The error because of which the message is incomplete. */
    error?: string | null;
  };
}

/** A piece of a model's reasoning. */
export interface LlmReasoning extends Envelope {
  event: {
    category: "llm";
    action: "reasoning";
  };
  data: {
    /** The next piece of the reasoning. */
    thought: string;
    /** The reasoning that the piece belongs to. */
    reasoning_id: string;
    /** The title of this part of the reasoning. */
    title?: string | null;
    /** True for the last piece. */
    final?: boolean | null;
    /** True where the reasoning is not meant for users. */
    debug?: boolean | null;
  };
}

/** A piece of a call's arguments: JSON text (`delta`), or one value at a path. */
export interface LlmToolArgs extends Envelope {
  event: {
    category: "llm";
    action: "tool_args";
  };
  data: {
    /** The tool call that the piece belongs to. */
    tool_call_id: string;
    /** The tool's name. */
    tool: string;
    /** The next piece of the arguments as JSON text. */
    delta?: string | null;
    /** The JSONPath of a value in the arguments. */
    path?: string | null;
    /** The value at `path`, or the next piece of it. */
    value?: unknown;
  };
}

/** The model asked for a tool call. There is one event for each call. */
export interface LlmToolCall extends Envelope {
  event: {
    category: "llm";
    action: "tool_call";
  };
  data: {
    /** The tool's name. */
    tool: string;
    /** The arguments of the call. */
    args: Record<string, unknown>;
    /** The call's id, unique in the run. */
    tool_call_id: string;
    /** The message that contains the call. */
    message_id?: string | null;
    /** True where the call waits for a decision. */
    pending?: boolean | null;
    /** The arguments as text, where they are not valid JSON. */
    args_text?: string | null;
    /** Where the tool runs: `server` or `client`. */
    execution?: string | null;
  };
}

/** A tool began to run (`status: running`), or reports progress. */
export interface LlmToolProgress extends Envelope {
  event: {
    category: "llm";
    action: "tool_progress";
  };
  data: {
    /** The tool call. */
    tool_call_id: string;
    /** `running`, or the status that the tool reports. */
    status?: string | null;
    /** The next piece of the tool's output. */
    delta?: string | null;
    /** The tool that runs, where it differs from the approved one. */
    tool?: string | null;
    /** The arguments of the call, where they differ from the approved ones. */
    args?: Record<string, unknown> | null;
  };
}

/** A tool call ended. There is at most one event for each call. */
export interface LlmToolResult extends Envelope {
  event: {
    category: "llm";
    action: "tool_result";
  };
  data: {
    /** The tool's name. */
    tool: string;
    /** The result that the tool returned, as JSON. */
    result: unknown;
    /** The tool call. */
    tool_call_id: string;
    /** The outcome: `ok`, `error`, `rejected`, `expired` or `partial`. */
    outcome: string;
    /** What went wrong. */
    error?: string | null;
    /** The result in parts. */
    content?: unknown[] | null;
    /** The duration of the call in seconds. */
    duration_s?: number | null;
    /** The message that contains the result. */
    message_id?: string | null;
    /** What the call cost, if the operator has set a price. */
    cost?: Cost | null;
  };
}

/** A model was called and used tokens. A run's events together are all that the run used. */
export interface LlmUsage extends Envelope {
  event: {
    category: "llm";
    action: "usage";
  };
  data: {
    /** The model, as the agent server names it, if it does. */
    model?: string | null;
    /** The model's provider, as the agent server names it, if it does. */
    provider?: string | null;
    /** The tokens that the model read, including those from and for a cache. */
    input_tokens?: number | null;
    /** The tokens that the model wrote, including its reasoning. */
    output_tokens?: number | null;
    /** All tokens, where the agent server tells only their sum. */
    total_tokens?: number | null;
    /** The part of `output_tokens` that is reasoning, if not 0. */
    reasoning_tokens?: number | null;
    /** The part of `input_tokens` that a cache held, if not 0. */
    cached_input_tokens?: number | null;
    /** The part of `input_tokens` that was written into a cache, if not 0. */
    cache_write_tokens?: number | null;
    /** What the agent server counted: one `call`, all calls of a `leg`, or all calls of an agent's `run`. */
    reported: string;
    /** True where the numbers may differ from what was used: the answer was cut off, or the agent server is known to count some calls twice. */
    estimated: boolean;
    /** The seconds until the model's first token. */
    time_to_first_token_s?: number | null;
    /** What the tokens cost; null if the price is not known. */
    cost?: Cost | null;
  };
}

/** A team was given a task. */
export interface DispatchTeam extends Envelope {
  event: {
    category: "dispatch";
    action: "team";
  };
  data: {
    /** The name of the team. */
    team_name: string;
    /** The task of the team. */
    task: string;
    /** The id of the team's inner run, where the team is one run. */
    subrun_id?: string | null;
    /** The id of the inner run that contains this one. */
    parent_subrun_id?: string | null;
  };
}

/** An agent inside the run was given a task, and an inner run begins. */
export interface DispatchWorker extends Envelope {
  event: {
    category: "dispatch";
    action: "worker";
  };
  data: {
    /** The name of the agent that does the task. */
    worker_name: string;
    /** The task of the agent. */
    task: string;
    /** The id of the inner run. */
    subrun_id: string;
    /** The id of the inner run that contains this one. */
    parent_subrun_id?: string | null;
  };
}

/** One agent hands the conversation over to another. */
export interface DispatchTransfer extends Envelope {
  event: {
    category: "dispatch";
    action: "transfer";
  };
  data: {
    /** The agent that takes over. */
    to: string;
    /** The agent that hands over. */
    from: string;
    /** The reason for the transfer. */
    reason?: string | null;
  };
}

/** An inner run ended. */
export interface DispatchFinished extends Envelope {
  event: {
    category: "dispatch";
    action: "finished";
  };
  data: {
    /** The id of the inner run. */
    subrun_id: string;
    /** The end of the inner run: `completed`, `failed` or `cancelled`. */
    status: string;
    /** The result of the inner run. */
    result?: unknown;
    /** What went wrong. */
    error?: string | null;
  };
}

/** A workflow begins. */
export interface WorkflowStarted extends Envelope {
  event: {
    category: "workflow";
    action: "started";
  };
  data: {
    /** The workflow's name. */
    workflow: string;
    /** The id of the workflow's run. */
    run_id: string;
    /** The workflow's version. */
    version?: string | null;
    /** The input of the workflow. */
    input?: unknown;
  };
}

/** A step begins. */
export interface WorkflowStepStarted extends Envelope {
  event: {
    category: "workflow";
    action: "step_started";
  };
  data: {
    /** The id of the workflow's run. */
    run_id: string;
    /** The step's id, unique in the run. */
    step_id: string;
    /** A description of the step. */
    description: string;
    /** The kind of the step: step, loop, parallel, condition or router; of Penstock's workflows also workflow, approve, call, listen, wait and set. */
    kind?: string | null;
    /** The number of the loop's iteration. */
    iteration?: number | null;
    /** The branch of a parallel step or of a condition. */
    branch?: string | null;
    /** The id of the step that contains this one. */
    parent_step_id?: string | null;
    /** The id of the run that does the step. */
    child_run_id?: string | null;
    /** The number of the attempt, from the second one on. */
    attempt?: number | null;
    /** The `agent_type` of the run that does the step, as `include=children` shows it: `global_supervisor`, `team_supervisor` or `worker`. */
    role?: string | null;
    /** The team that does the step. */
    team_name?: string | null;
  };
}

/** A step reports progress. */
export interface WorkflowStepProgress extends Envelope {
  event: {
    category: "workflow";
    action: "step_progress";
  };
  data: {
    /** The step's id. */
    step_id: string;
    /** A description of the progress. */
    message?: string | null;
  };
}

/** A step ended successfully. */
export interface WorkflowStepCompleted extends Envelope {
  event: {
    category: "workflow";
    action: "step_completed";
  };
  data: {
    /** The id of the workflow's run. */
    run_id: string;
    /** The step's id. */
    step_id: string;
    /** The output of the step, or null. */
    output: unknown;
    /** The id of the run that did the step. */
    child_run_id?: string | null;
    /** Set if the run is a fork that has not done the step again: where the output comes from. */
    taken_from?: TakenFrom | null;
  };
}

/** A step ended with an error. */
export interface WorkflowStepFailed extends Envelope {
  event: {
    category: "workflow";
    action: "step_failed";
  };
  data: {
    /** The id of the workflow's run. */
    run_id: string;
    /** The step's id. */
    step_id: string;
    /** The error of the step. */
    error: ErrorInfo;
    /** The id of the run that did the step. */
    child_run_id?: string | null;
  };
}

/** The workflow chose the next step. */
export interface WorkflowTransition extends Envelope {
  event: {
    category: "workflow";
    action: "transition";
  };
  data: {
    /** The id of the workflow's run. */
    run_id: string;
    /** The id of the step that ended. */
    from_step: string;
    /** The id of the step that follows. */
    to_step: string;
    /** The reason for the choice. */
    reason: string;
  };
}

/** A workflow ended successfully. */
export interface WorkflowCompleted extends Envelope {
  event: {
    category: "workflow";
    action: "completed";
  };
  data: {
    /** The id of the workflow's run. */
    run_id: string;
    /** The result of the workflow. */
    result: unknown;
  };
}

/** A workflow ended with an error. */
export interface WorkflowFailed extends Envelope {
  event: {
    category: "workflow";
    action: "failed";
  };
  data: {
    /** The id of the workflow's run. */
    run_id: string;
    /** The error of the workflow. */
    error: ErrorInfo;
  };
}

/** A search of a knowledge base begins. */
export interface RetrievalStarted extends Envelope {
  event: {
    category: "retrieval";
    action: "started";
  };
  data: {
    /** The search's id, unique in the run. */
    retrieval_id: string;
    /** The query of the search. */
    query: string;
  };
}

/** A search found documents. */
export interface RetrievalResult extends Envelope {
  event: {
    category: "retrieval";
    action: "result";
  };
  data: {
    /** The search's id, where the search was announced. */
    retrieval_id?: string | null;
    /** The documents that were found, the best match first. */
    documents: Document[];
  };
}

/** The upstream waits for decisions. The event has all undecided items of one pause. */
export interface ApprovalRequested extends Envelope {
  event: {
    category: "approval";
    action: "requested";
  };
  data: {
    /** The approval's id. */
    approval_id: string;
    /** The SHA-256 of all items as hexadecimal digits. */
    digest: string;
    /** The deadline of the decision: RFC 3339, UTC. */
    expires_at?: string | null;
    /** The policy that requires the decision. */
    policy?: string | null;
    /** The number of people who must approve by the step of a workflow, else 1. `lifecycle.paused` has the number that the policy requires. */
    deciders_required: number;
    /** Who may decide by the step of a workflow: `scope`, `roles`, `users` and `not`, as in a policy. */
    deciders?: Record<string, unknown> | null;
    /** The items that must be decided. */
    items: RequestedItem[];
  };
}

/** A decision was made; there is one per approval. */
export interface ApprovalDecided extends Envelope {
  event: {
    category: "approval";
    action: "decided";
  };
  data: {
    /** The approval's id. */
    approval_id: string;
    /** The outcome of all items: `approved`, `rejected` or `mixed`. */
    outcome: string;
    /** The user who decided. */
    by: string;
    /** The other user for whom `by` decided, if there is one. */
    on_behalf_of?: string | null;
    /** All who approved, where the policy required several people. */
    deciders?: string[] | null;
    /** The policy's rule and version, such as `payments@7`. */
    policy?: string | null;
    /** True where a policy decided instead of a person. */
    automatic: boolean;
    /** A note of the decider. */
    note?: string | null;
    /** The decision on each item. */
    items: DecidedItem[];
  };
}

/** Nobody decided in time for a step of the policy, so further people may decide now. */
export interface ApprovalEscalated extends Envelope {
  event: {
    category: "approval";
    action: "escalated";
  };
  data: {
    /** The approval's id. */
    approval_id: string;
    /** The number of the step: 1 for the first that the waiting approval takes. Escalations, reminders and remarks are steps. */
    step: number;
    /** The people who may decide from now on, too. */
    to: EscalatedTo;
    /** The deadline of the decision: RFC 3339, UTC. */
    expires_at?: string | null;
  };
}

/** The deadline is near, and the run still waits. */
export interface ApprovalReminded extends Envelope {
  event: {
    category: "approval";
    action: "reminded";
  };
  data: {
    /** The approval's id. */
    approval_id: string;
    /** The number of the step: 1 for the first that the waiting approval takes. Escalations, reminders and remarks are steps. */
    step: number;
    /** The deadline of the decision: RFC 3339, UTC. */
    expires_at: string;
  };
}

/** A person says something about the waiting approval without deciding it. */
export interface ApprovalRemarked extends Envelope {
  event: {
    category: "approval";
    action: "remarked";
  };
  data: {
    /** The approval's id. */
    approval_id: string;
    /** The number of the step: 1 for the first that the waiting approval takes. Escalations, reminders and remarks are steps. */
    step: number;
    /** `question` to the user of the run, this user's `answer`, or `handover`. */
    kind: string;
    /** The person. */
    by: string;
    /** To whom the decision is handed over. */
    to?: string | null;
    /** What the person says. */
    text?: string | null;
  };
}

/** The deadline passed without a decision. */
export interface ApprovalExpired extends Envelope {
  event: {
    category: "approval";
    action: "expired";
  };
  data: {
    /** The approval's id. */
    approval_id: string;
    /** The deadline that passed. */
    reason: string;
  };
}

/** The decision is no longer needed. The event may follow the run's end. */
export interface ApprovalWithdrawn extends Envelope {
  event: {
    category: "approval";
    action: "withdrawn";
  };
  data: {
    /** The approval's id. */
    approval_id: string;
    /** The reason, such as the end of the run. */
    reason: string;
  };
}

/** A rule matched an event. */
export interface AutomationTriggered extends Envelope {
  event: {
    category: "automation";
    action: "triggered";
  };
  data: {
    /** How many rules led to this delivery: rules that started the run, and rules whose events this delivery is about. */
    depth?: number | null;
    /** The rule's id. */
    automation: string;
    /** The type of the event that the rule matched. On a run that the rule has started, also `schedule.fired` or `hook.received`. */
    trigger: string;
    /** The delivery's id, the same for all attempts. */
    delivery_id: string;
    /** The rule's name. */
    workflow: string;
  };
}

/** A delivery succeeded. */
export interface AutomationCompleted extends Envelope {
  event: {
    category: "automation";
    action: "completed";
  };
  data: {
    /** How many rules led to this delivery: rules that started the run, and rules whose events this delivery is about. */
    depth?: number | null;
    /** The rule's id. */
    automation: string;
    /** The rule's name. */
    workflow: string;
    /** The delivery's id. */
    delivery_id: string;
    /** The HTTP status of the receiver's last answer. */
    status_code?: number | null;
    /** A description of the outcome for people. */
    result: string;
    /** The number of attempts. */
    attempts: number;
    /** Seconds between the first attempt and the end. */
    duration_s: number;
    /** The run that the rule has started, if it starts runs. */
    started_run_id?: string | null;
    /** The error of the last attempt. */
    error?: ErrorInfo | null;
  };
}

/** A delivery was given up. */
export interface AutomationFailed extends Envelope {
  event: {
    category: "automation";
    action: "failed";
  };
  data: {
    /** How many rules led to this delivery: rules that started the run, and rules whose events this delivery is about. */
    depth?: number | null;
    /** The rule's id. */
    automation: string;
    /** The rule's name. */
    workflow: string;
    /** The delivery's id. */
    delivery_id: string;
    /** The HTTP status of the receiver's last answer. */
    status_code?: number | null;
    /** A description of the outcome for people. */
    result: string;
    /** The number of attempts. */
    attempts: number;
    /** Seconds between the first attempt and the end. */
    duration_s: number;
    /** The run that the rule has started, if it starts runs. */
    started_run_id?: string | null;
    /** The error of the last attempt. */
    error?: ErrorInfo | null;
  };
}

/** The whole state, which replaces all earlier state. */
export interface StateSnapshot extends Envelope {
  event: {
    category: "state";
    action: "snapshot";
  };
  data: {
    /** The whole state. */
    snapshot: unknown;
  };
}

/** A change of the state. */
export interface StateDelta extends Envelope {
  event: {
    category: "state";
    action: "delta";
  };
  data: {
    /** A JSON Patch (RFC 6902) of the state; the first state is `{}`. */
    delta: unknown[];
  };
}

/** The whole conversation, as the agent knows it. */
export interface StateMessages extends Envelope {
  event: {
    category: "state";
    action: "messages";
  };
  data: {
    /** The messages, the oldest first. */
    messages: unknown[];
  };
}

/** A file was made, or has a new version. */
export interface ArtifactUpdated extends Envelope {
  event: {
    category: "artifact";
    action: "updated";
  };
  data: {
    /** The file's name. */
    name: string;
    /** The number of the version; the first is 0. */
    version?: number | null;
    /** The media type (MIME) of the file. */
    media_type?: string | null;
    /** The size of the file in bytes. */
    size_bytes?: number | null;
    /** The SHA-256 of the content as hexadecimal digits. */
    digest?: string | null;
    /** The address of the file. */
    uri?: string | null;
  };
}

/** An upstream event without a type of its own in the contract. */
export interface CustomEvent extends Envelope {
  event: {
    category: "custom";
    action: "event";
  };
  data: {
    /** The protocol of the event: `agno`, `adk` or `agui`. */
    protocol: string;
    /** The name of the event in that protocol. */
    name: string;
    /** The event as the upstream sent it. */
    value: unknown;
  };
}

/** A warning. The run goes on. */
export interface SystemWarning extends Envelope {
  event: {
    category: "system";
    action: "warning";
  };
  data: {
    /** A description for people. */
    message: string;
    /** A short name of it, for programs. */
    code: string;
    /** Further details. */
    detail?: unknown;
  };
}

/** An error that did not end the run. */
export interface SystemError extends Envelope {
  event: {
    category: "system";
    action: "error";
  };
  data: {
    /** A description of the error for people. */
    message: string;
    /** A short name of it, for programs. */
    code: string;
    /** Further details. */
    detail?: unknown;
  };
}

/** The content of the run was erased. Only this event and later ones are left of the run. */
export interface SystemErased extends Envelope {
  event: {
    category: "system";
    action: "erased";
  };
  data: {
    /** The erasure, which may be of several runs. */
    erasure_id: string;
    /** The user who has asked for it. */
    by: string;
    /** The reason that this user gave. */
    reason?: string | null;
  };
}

/** Measurements of a machine or process. The data may contain further ones. */
export interface SystemMetrics extends Envelope {
  event: {
    category: "system";
    action: "metrics";
  };
  data: {
    /** The CPU in use, in percent. */
    cpu?: number | null;
    /** The memory in use, with its unit. */
    memory_used?: string | null;
    /** The free disk space, with its unit. */
    disk_free?: string | null;
    /** The number of running containers. */
    containers_running?: number | null;
  };
}

/** Every canonical event that this version knows. */
export interface EventMap {
  "lifecycle.started": LifecycleStarted;
  "lifecycle.paused": LifecyclePaused;
  "lifecycle.resumed": LifecycleResumed;
  "lifecycle.retrying": LifecycleRetrying;
  "lifecycle.completed": LifecycleCompleted;
  "lifecycle.failed": LifecycleFailed;
  "lifecycle.cancelled": LifecycleCancelled;
  "llm.message_started": LlmMessageStarted;
  "llm.stream": LlmStream;
  "llm.message_completed": LlmMessageCompleted;
  "llm.reasoning": LlmReasoning;
  "llm.tool_args": LlmToolArgs;
  "llm.tool_call": LlmToolCall;
  "llm.tool_progress": LlmToolProgress;
  "llm.tool_result": LlmToolResult;
  "llm.usage": LlmUsage;
  "dispatch.team": DispatchTeam;
  "dispatch.worker": DispatchWorker;
  "dispatch.transfer": DispatchTransfer;
  "dispatch.finished": DispatchFinished;
  "workflow.started": WorkflowStarted;
  "workflow.step_started": WorkflowStepStarted;
  "workflow.step_progress": WorkflowStepProgress;
  "workflow.step_completed": WorkflowStepCompleted;
  "workflow.step_failed": WorkflowStepFailed;
  "workflow.transition": WorkflowTransition;
  "workflow.completed": WorkflowCompleted;
  "workflow.failed": WorkflowFailed;
  "retrieval.started": RetrievalStarted;
  "retrieval.result": RetrievalResult;
  "approval.requested": ApprovalRequested;
  "approval.decided": ApprovalDecided;
  "approval.escalated": ApprovalEscalated;
  "approval.reminded": ApprovalReminded;
  "approval.remarked": ApprovalRemarked;
  "approval.expired": ApprovalExpired;
  "approval.withdrawn": ApprovalWithdrawn;
  "automation.triggered": AutomationTriggered;
  "automation.completed": AutomationCompleted;
  "automation.failed": AutomationFailed;
  "state.snapshot": StateSnapshot;
  "state.delta": StateDelta;
  "state.messages": StateMessages;
  "artifact.updated": ArtifactUpdated;
  "custom.event": CustomEvent;
  "system.warning": SystemWarning;
  "system.error": SystemError;
  "system.erased": SystemErased;
  "system.metrics": SystemMetrics;
}

export type EventType = keyof EventMap;

export type EventOf<T extends EventType> = EventMap[T];

export type PenstockEvent = EventMap[EventType];

/** A run ends at the first of these. */
export type TerminalType = "lifecycle.cancelled" | "lifecycle.completed" | "lifecycle.failed";

/** The message on the bus in place of an event over 512 KiB. */
export interface LargeEvent {
  penstock_object: string;
}

/** The root fields of every unified event. */
export interface UnifiedEnvelope {
  /** A UUID, unique and stable: the same event has the same id when replayed. */
  event_id: string;
  /** The session (conversation, thread). */
  session_id: string;
  /** When the connector received the event: RFC 3339, UTC. */
  timestamp: string;
  /** The event's type, in snake_case. */
  type: string;
  /** The fields of the event's type. */
  payload: Record<string, unknown>;
}

/** A run of the session begins. */
export interface UnifiedSessionStarted extends UnifiedEnvelope {
  type: "session_started";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The session's id. */
    session_id: string;
    /** The agent's id. */
    agent: string;
    /** The owner and the workflow. */
    metadata: SessionMetadata;
  };
}

/** A run of the session ended. */
export interface UnifiedSessionEnded extends UnifiedEnvelope {
  type: "session_ended";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The session's id. */
    session_id: string;
    /** The end of the run: `completed`, `failed` or `cancelled`. */
    reason: string;
    /** The final text, or a description of the error. */
    summary: string;
  };
}

/** A message begins. */
export interface UnifiedAgentMessageStart extends UnifiedEnvelope {
  type: "agent_message_start";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The agent that speaks. */
    agent: string;
    /** The message's id. */
    message_id: string;
  };
}

/** A piece of a message's text. */
export interface UnifiedAgentMessageDelta extends UnifiedEnvelope {
  type: "agent_message_delta";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The message that the piece belongs to. */
    message_id: string;
    /** The next piece of the text. */
    delta: string;
  };
}

/** A message is whole. */
export interface UnifiedAgentMessageEnd extends UnifiedEnvelope {
  type: "agent_message_end";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The message's id. */
    message_id: string;
    /** The whole text. */
    content: string;
  };
}

/** The model asked for a tool. */
export interface UnifiedToolCallStarted extends UnifiedEnvelope {
  type: "tool_call_started";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The tool call's id. */
    tool_call_id: string;
    /** The tool's name. */
    tool_name: string;
    /** The agent that asked for the call. */
    agent: string;
    /** The tool's arguments. */
    args: Record<string, unknown>;
  };
}

/** A tool tells how far it is. */
export interface UnifiedToolCallDelta extends UnifiedEnvelope {
  type: "tool_call_delta";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The tool call's id. */
    tool_call_id: string;
    /** The next piece of the tool's output. */
    delta: string;
  };
}

/** What a call came to. */
export interface UnifiedToolCallResult extends UnifiedEnvelope {
  type: "tool_call_result";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The tool call's id. */
    tool_call_id: string;
    /** The tool's name. */
    tool_name: string;
    /** The result that the tool returned, as JSON. */
    result: unknown;
    /** Whether the call failed, was rejected or expired; an additional field. */
    is_error: boolean;
  };
}

/** A workflow begins. */
export interface UnifiedWorkflowStarted extends UnifiedEnvelope {
  type: "workflow_started";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** The workflow's name. */
    workflow: string;
  };
}

/** A step begins. */
export interface UnifiedWorkflowStepStarted extends UnifiedEnvelope {
  type: "workflow_step_started";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** The step's id. */
    step_id: string;
    /** A description of the step. */
    description: string;
  };
}

/** A step ended well. */
export interface UnifiedWorkflowStepCompleted extends UnifiedEnvelope {
  type: "workflow_step_completed";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** The step's id. */
    step_id: string;
    /** The output of the step, or null. */
    output: unknown;
  };
}

/** The workflow goes from one step to another. */
export interface UnifiedWorkflowTransition extends UnifiedEnvelope {
  type: "workflow_transition";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** The step that ended. */
    from_step: string;
    /** The step that follows. */
    to_step: string;
    /** The reason for the choice. */
    reason: string;
  };
}

/** A workflow ended well. */
export interface UnifiedWorkflowCompleted extends UnifiedEnvelope {
  type: "workflow_completed";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** The result of the workflow. */
    result: WorkflowResult;
  };
}

/** A piece of a model's thoughts. */
export interface UnifiedAgentThought extends UnifiedEnvelope {
  type: "agent_thought";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The agent that reasons. */
    agent: string;
    /** The next piece of the text. */
    content: string;
    /** True where the reasoning is not meant for users. */
    debug: boolean;
  };
}

/** Something failed; whether the run ended is said by `session_ended`. */
export interface UnifiedRunError extends UnifiedEnvelope {
  type: "run_error";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The class or code of the error. */
    error_type: string;
    /** A description of the error for people. */
    message: string;
    /** The agent in which the error occurred. */
    agent: string;
    /** The step in which the error occurred, or null. */
    step: string | null;
  };
}

/** Something failed and is tried again. */
export interface UnifiedRunRetry extends UnifiedEnvelope {
  type: "run_retry";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The number of the retry that begins; the first is 1. */
    retry_count: number;
    /** The number of retries that are allowed. */
    max_retries: number;
    /** What failed. */
    reason: string;
  };
}

/** The run was stopped (`user_stop`), or waits for a person (`approval_required`). */
export interface UnifiedRunInterrupted extends UnifiedEnvelope {
  type: "run_interrupted";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The reason for the interruption. */
    reason: string;
    /** The step that was running, or null. */
    step: string | null;
  };
}

/** A search of a knowledge base begins. */
export interface UnifiedRetrievalStarted extends UnifiedEnvelope {
  type: "retrieval_started";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The query of the search. */
    query: string;
    /** The agent that searches. */
    agent: string;
  };
}

/** A search found documents. */
export interface UnifiedRetrievalResult extends UnifiedEnvelope {
  type: "retrieval_result";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The documents that were found, the best match first. */
    documents: RetrievedDocument[];
  };
}

/** A rule matched an event. */
export interface UnifiedAutomationTriggered extends UnifiedEnvelope {
  type: "automation_triggered";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The rule's name. */
    workflow: string;
    /** The type of the event that the rule matched. */
    trigger: string;
  };
}

/** A delivery ended. For a failed one `result` begins with `failed: `. */
export interface UnifiedAutomationCompleted extends UnifiedEnvelope {
  type: "automation_completed";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The rule's name. */
    workflow: string;
    /** A description of the outcome for people. */
    result: string;
  };
}

/** Measurements of a machine or process; null for those that are not known. */
export interface UnifiedMetricsUpdate extends UnifiedEnvelope {
  type: "metrics_update";
  payload: {
    /** The run's id, in addition to the contract's fields. */
    run_id: string;
    /** The CPU in use, in percent. */
    cpu: number | null;
    /** The memory in use, with its unit. */
    memory_used: string | null;
    /** The free disk space, with its unit. */
    disk_free: string | null;
    /** The number of running containers. */
    containers_running: number | null;
  };
}

/** The unified events; `type` tells them apart. */
export type UnifiedEvent =
  | UnifiedSessionStarted
  | UnifiedSessionEnded
  | UnifiedAgentMessageStart
  | UnifiedAgentMessageDelta
  | UnifiedAgentMessageEnd
  | UnifiedToolCallStarted
  | UnifiedToolCallDelta
  | UnifiedToolCallResult
  | UnifiedWorkflowStarted
  | UnifiedWorkflowStepStarted
  | UnifiedWorkflowStepCompleted
  | UnifiedWorkflowTransition
  | UnifiedWorkflowCompleted
  | UnifiedAgentThought
  | UnifiedRunError
  | UnifiedRunRetry
  | UnifiedRunInterrupted
  | UnifiedRetrievalStarted
  | UnifiedRetrievalResult
  | UnifiedAutomationTriggered
  | UnifiedAutomationCompleted
  | UnifiedMetricsUpdate;

export type UnifiedType = UnifiedEvent["type"];
