// Made by `make contract` from the models in penstock.events: do not edit.
//
// A reader must accept what it does not know: later versions add types and fields. So treat what
// arrives as an `Envelope`, and narrow it by its type:
//
//   const isType = <T extends EventType>(event: Envelope, type: T): event is EventOf<T> =>
//     `${event.event.category}.${event.event.action}` === type;

/** The decision on one item. */
export interface DecidedItem {
  /** The item. */
  item_id: string;
  /** `approve` or `reject`. */
  decision: string;
  /** What the decider said about it. */
  note?: string | null;
  /** The answer, where one was asked for. */
  value?: unknown;
}

/** One document that was found. */
export interface Document {
  /** The document's id in its store. */
  id: string;
  /** How well it fits; higher is better. */
  score?: number | null;
  /** The text that was found. */
  content: string;
  /** Its title. */
  title?: string | null;
  /** Where it is. */
  url?: string | null;
}

/** A failure as an object. */
export interface ErrorInfo {
  /** A short name of the failure. */
  code: string;
  /** What went wrong, for people. */
  message: string;
  /** Whether trying again may help. */
  retryable?: boolean | null;
  /** The HTTP status, if there was one. */
  status_code?: number | null;
  /** What else is known. */
  detail?: unknown;
}

/** What happened, in two words. */
export interface EventName {
  /** The family of the event: lifecycle, llm, approval, … */
  category: string;
  /** What happened, within the category. */
  action: string;
}

/** One thing that somebody must decide. */
export interface RequestedItem {
  /** The item, unique in the approval. */
  item_id: string;
  /** `confirmation`, `input`, `external`, `credential`, `feedback`, `selection`, `review` or `long_running`. */
  kind: string;
  /** SHA-256 hex of what is asked, so that a decision is for it. */
  digest: string;
  /** The call that waits. */
  tool_call_id?: string | null;
  /** The tool that would run. */
  tool?: string | null;
  /** With these arguments. */
  args?: Record<string, unknown> | null;
  /** What is asked, for people. */
  description?: string | null;
  /** JSON Schema of the value that an answer must carry. */
  input_schema?: Record<string, unknown> | null;
  /** What may be chosen. */
  options?: unknown[] | null;
  /** Whether a decision may change the arguments. */
  editable: boolean;
  /** The inner run that asks. */
  subrun?: Subrun | null;
}

/** One document that was found. */
export interface RetrievedDocument {
  /** The document's id in its store. */
  id: string;
  /** How well it fits, or null; higher is better. */
  score: number | null;
  /** The text that was found. */
  content: string;
}

/** Whose session it is, and what it runs. */
export interface SessionMetadata {
  /** Whose run it is. */
  user_id: string;
  /** The workflow; of a run without one the agent's id. */
  workflow: string;
}

/** Who said it. */
export interface Source {
  /** The agent's id in Penstock's configuration, or upstream's. */
  agent_id: string;
  /** `agent`, `team` or `workflow` for the outer run, `worker` for one inside it. */
  agent_type: string;
  /** The agent's name, to show to people. */
  agent_name: string;
  /** The team that the agent works in, or null. */
  team_name: string | null;
}

/** The inner run that an event belongs to: a team's member, a workflow's agent. */
export interface Subrun {
  /** The inner run's id, as the upstream says it. */
  id: string;
  /** The run around it, if not the outer. */
  parent_id?: string | null;
  /** Who works in it. */
  name?: string | null;
}

/** Tokens that the models of a run used, as far as the upstream tells. */
export interface Usage {
  /** Tokens read. */
  input_tokens?: number | null;
  /** Tokens written. */
  output_tokens?: number | null;
  /** Both together. */
  total_tokens?: number | null;
  /** Tokens spent on thoughts. */
  reasoning_tokens?: number | null;
  /** Tokens read from a cache. */
  cached_input_tokens?: number | null;
}

/** What a workflow came to. */
export interface WorkflowResult {
  /** For people. */
  summary: string;
  /** What has no summary of its own, as JSON. */
  value?: unknown;
}

/** One canonical event, of a type that this version knows or of a later one. */
export interface Envelope {
  /** The run's id, a UUIDv7 that Penstock made. */
  run_id: string;
  /** When the connector received it: RFC 3339, UTC, milliseconds. Never decreases. */
  timestamp: string;
  /** The event's place in its run: 1, 2, 3 … no gaps. */
  sequence: number;
  /** Who said it; null when Penstock itself did. */
  source: Source | null;
  /** Category and action. */
  event: EventName;
  /** The fields of the event's type. */
  data: Record<string, unknown>;
  /** The conversation (thread) of the run. Always on the bus; the executions dialect has the fields above only. */
  session_id?: string | null;
  /** The upstream request that it came from: 1 is the start, each continue one more. Always on the bus. */
  leg?: number | null;
  /** Above 1 when it was produced again after a failure. */
  attempt?: number | null;
  /** The run that started this one. */
  parent_run_id?: string | null;
  /** The workflow step it belongs to. */
  step_id?: string | null;
  /** The inner run it belongs to. */
  subrun?: Subrun | null;
}

/** A run was accepted. Always sequence 1, before the upstream answers. */
export interface LifecycleStarted extends Envelope {
  event: {
    category: "lifecycle";
    action: "started";
  };
  data: {
    /** The agent's id in the configuration. */
    agent: string;
    /** Whose run it is. */
    user_id: string;
    /** What the user said. */
    message?: string | null;
    /** The start's key, if it had one. */
    idempotency_key?: string | null;
  };
}

/** The run waits for a person. */
export interface LifecyclePaused extends Envelope {
  event: {
    category: "lifecycle";
    action: "paused";
  };
  data: {
    /** Why it waits: `approval_required`. */
    reason: string;
    /** The approval that it waits for. */
    approval_id: string;
  };
}

/** A paused run goes on; said only after `lifecycle.paused`. */
export interface LifecycleResumed extends Envelope {
  event: {
    category: "lifecycle";
    action: "resumed";
  };
  data: {
    /** The approval that was decided. */
    approval_id?: string | null;
    /** The upstream's id of what goes on. */
    upstream_run_id?: string | null;
  };
}

/** Something failed and is tried again. */
export interface LifecycleRetrying extends Envelope {
  event: {
    category: "lifecycle";
    action: "retrying";
  };
  data: {
    /** Which retry begins: 1 is the first. */
    retry_count: number;
    /** How many there may be. */
    max_retries: number;
    /** What failed. */
    reason: string;
    /** The step that is tried again. */
    step?: string | null;
  };
}

/** The run ended well. Terminal. */
export interface LifecycleCompleted extends Envelope {
  event: {
    category: "lifecycle";
    action: "completed";
  };
  data: {
    /** The final text. */
    summary: string;
    /** The whole answer, if not the summary. */
    content?: string | null;
    /** Structured output, as JSON. */
    value?: unknown;
    /** What `value` or `content` is. */
    content_type?: string | null;
    /** Tokens used. */
    usage?: Usage | null;
    /** The upstream's own figures. */
    metrics?: Record<string, unknown> | null;
    /** The session's state at the end. */
    session_state?: unknown;
  };
}

/** The run ended in an error. Terminal. */
export interface LifecycleFailed extends Envelope {
  event: {
    category: "lifecycle";
    action: "failed";
  };
  data: {
    /** What went wrong, in the upstream's own words if it had any, without credentials and addresses of internal machines. */
    error: string;
    /** `upstream_lost`, `upstream_http`, `not_a_stream`, `upstream_error`, `timeout`, `outcome_unknown`, `history_lost`, `limit`, `not_accepted` or `internal`. */
    code: string;
    /** The upstream's class of error. */
    error_type?: string | null;
    /** The step that failed. */
    step?: string | null;
    /** The upstream's HTTP status. */
    status_code?: number | null;
    /** What else is known. */
    detail?: unknown;
    /** Whether a new run may succeed. */
    retryable?: boolean | null;
  };
}

/** The run was stopped. Terminal. */
export interface LifecycleCancelled extends Envelope {
  event: {
    category: "lifecycle";
    action: "cancelled";
  };
  data: {
    /** `user_stop`, `superseded` or `shutdown`. */
    reason: string;
    /** Who stopped it. */
    by?: string | null;
    /** The step that was under way. */
    step?: string | null;
    /** Whether the upstream said that it stopped. */
    confirmed: boolean;
  };
}

/** A message begins; said at its first text. */
export interface LlmMessageStarted extends Envelope {
  event: {
    category: "llm";
    action: "message_started";
  };
  data: {
    /** The message's id, unique in the run. */
    message_id: string;
    /** `assistant`, or who else speaks. */
    role: string;
    /** The speaker's name. */
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
    /** The next piece, never empty. */
    content: string;
    /** The message that it continues. */
    message_id: string;
  };
}

/** A message is whole. */
export interface LlmMessageCompleted extends Envelope {
  event: {
    category: "llm";
    action: "message_completed";
  };
  data: {
    /** The message's id. */
    message_id: string;
    /** `assistant`, or who else spoke. */
    role: string;
    /** The whole text. */
    content: string;
    /** Structured output, as JSON. */
    value?: unknown;
    /** What `value` or `content` is. */
    content_type?: string | null;
    /** Where it is taken from. */
    citations?: Record<string, unknown> | null;
    /** Parts that are not text. */
    parts?: unknown[] | null;
    /** How the message ended. */
    status?: string | null;
    /** What kind of result it is. */
    result_type?: string | null;
    /** Its main points. */
    key_points?: unknown[] | null;
    /** What to do next. */
    suggested_actions?: unknown[] | null;
    /** How to show it. */
    ui_schema?: Record<string, unknown> | null;
    /** Why it is not whole. */
    error?: string | null;
  };
}

/** A piece of a model's thoughts. */
export interface LlmReasoning extends Envelope {
  event: {
    category: "llm";
    action: "reasoning";
  };
  data: {
    /** The next piece (a delta). */
    thought: string;
    /** The train of thought that it continues. */
    reasoning_id: string;
    /** What this thought is about. */
    title?: string | null;
    /** True at the last piece. */
    final?: boolean | null;
    /** True when not meant for users. */
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
    /** The call that it belongs to. */
    tool_call_id: string;
    /** The tool's name. */
    tool: string;
    /** The next piece of the JSON text. */
    delta?: string | null;
    /** A JSONPath into the arguments. */
    path?: string | null;
    /** The value, or its next piece, at `path`. */
    value?: unknown;
  };
}

/** The model asked for a tool; exactly once per call id. */
export interface LlmToolCall extends Envelope {
  event: {
    category: "llm";
    action: "tool_call";
  };
  data: {
    /** The tool's name. */
    tool: string;
    /** Its arguments. */
    args: Record<string, unknown>;
    /** The call's id, unique in the run. */
    tool_call_id: string;
    /** The message that asked for it. */
    message_id?: string | null;
    /** True when it awaits a decision. */
    pending?: boolean | null;
    /** Arguments that are no JSON. */
    args_text?: string | null;
    /** Where it runs: `server`, `client`. */
    execution?: string | null;
  };
}

/** A tool runs (`status: running`), or tells how far it is. */
export interface LlmToolProgress extends Envelope {
  event: {
    category: "llm";
    action: "tool_progress";
  };
  data: {
    /** The call. */
    tool_call_id: string;
    /** `running`, or the tool's own word. */
    status?: string | null;
    /** A piece of output. */
    delta?: string | null;
    /** The tool that runs, where it is not what was approved. */
    tool?: string | null;
    /** Its arguments, where they are not what was approved. */
    args?: Record<string, unknown> | null;
  };
}

/** What a call came to; once per call id. */
export interface LlmToolResult extends Envelope {
  event: {
    category: "llm";
    action: "tool_result";
  };
  data: {
    /** The tool's name. */
    tool: string;
    /** What it returned, as JSON. */
    result: unknown;
    /** The call. */
    tool_call_id: string;
    /** `ok`, `error`, `rejected`, `expired` or `partial`. */
    outcome: string;
    /** What went wrong. */
    error?: string | null;
    /** The result in parts. */
    content?: unknown[] | null;
    /** How long it ran, in seconds. */
    duration_s?: number | null;
    /** The message that carries it. */
    message_id?: string | null;
  };
}

/** A team was given a task. */
export interface DispatchTeam extends Envelope {
  event: {
    category: "dispatch";
    action: "team";
  };
  data: {
    /** The team. */
    team_name: string;
    /** What it shall do. */
    task: string;
  };
}

/** An agent inside the run was given a task: an inner run begins. */
export interface DispatchWorker extends Envelope {
  event: {
    category: "dispatch";
    action: "worker";
  };
  data: {
    /** The agent that works. */
    worker_name: string;
    /** What it shall do. */
    task: string;
    /** The inner run. */
    subrun_id: string;
    /** The inner run around it. */
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
    /** Who goes on. */
    to: string;
    /** Who hands over. */
    from: string;
    /** Why. */
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
    /** The inner run. */
    subrun_id: string;
    /** `completed`, `failed` or `cancelled`. */
    status: string;
    /** What it came to. */
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
    /** The workflow's run. */
    run_id: string;
    /** The workflow's version. */
    version?: string | null;
    /** What it was given. */
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
    /** The workflow's run. */
    run_id: string;
    /** The step, unique in the run. */
    step_id: string;
    /** What the step does. */
    description: string;
    /** Step, loop, parallel, condition, router. */
    kind?: string | null;
    /** Which turn of a loop. */
    iteration?: number | null;
    /** Which branch of a parallel or condition. */
    branch?: string | null;
    /** The step around it. */
    parent_step_id?: string | null;
    /** The run that does the step. */
    child_run_id?: string | null;
  };
}

/** A step tells how far it is. */
export interface WorkflowStepProgress extends Envelope {
  event: {
    category: "workflow";
    action: "step_progress";
  };
  data: {
    /** The step. */
    step_id: string;
    /** How far it is. */
    message?: string | null;
  };
}

/** A step ended well. */
export interface WorkflowStepCompleted extends Envelope {
  event: {
    category: "workflow";
    action: "step_completed";
  };
  data: {
    /** The workflow's run. */
    run_id: string;
    /** The step. */
    step_id: string;
    /** What it came to, or null. */
    output: unknown;
    /** The run that did the step. */
    child_run_id?: string | null;
  };
}

/** A step ended in an error. */
export interface WorkflowStepFailed extends Envelope {
  event: {
    category: "workflow";
    action: "step_failed";
  };
  data: {
    /** The workflow's run. */
    run_id: string;
    /** The step. */
    step_id: string;
    /** What went wrong. */
    error: ErrorInfo;
    /** The run that did the step. */
    child_run_id?: string | null;
  };
}

/** The workflow goes from one step to another. */
export interface WorkflowTransition extends Envelope {
  event: {
    category: "workflow";
    action: "transition";
  };
  data: {
    /** The workflow's run. */
    run_id: string;
    /** The step that chose. */
    from_step: string;
    /** The step that comes. */
    to_step: string;
    /** Why this one. */
    reason: string;
  };
}

/** A workflow ended well. */
export interface WorkflowCompleted extends Envelope {
  event: {
    category: "workflow";
    action: "completed";
  };
  data: {
    /** The workflow's run. */
    run_id: string;
    /** What it came to. */
    result: unknown;
  };
}

/** A workflow ended in an error. */
export interface WorkflowFailed extends Envelope {
  event: {
    category: "workflow";
    action: "failed";
  };
  data: {
    /** The workflow's run. */
    run_id: string;
    /** What went wrong. */
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
    /** The search, unique in the run. */
    retrieval_id: string;
    /** What is looked for. */
    query: string;
  };
}

/** What a search found. */
export interface RetrievalResult extends Envelope {
  event: {
    category: "retrieval";
    action: "result";
  };
  data: {
    /** The search, if it was announced. */
    retrieval_id?: string | null;
    /** What was found, best first. */
    documents: Document[];
  };
}

/** The upstream waits for decisions; all undecided items of one pause. */
export interface ApprovalRequested extends Envelope {
  event: {
    category: "approval";
    action: "requested";
  };
  data: {
    /** The approval. */
    approval_id: string;
    /** SHA-256 hex over all items. */
    digest: string;
    /** Deadline, RFC 3339 UTC. */
    expires_at?: string | null;
    /** The policy that asks. */
    policy?: string | null;
    /** How many people must agree. */
    deciders_required: number;
    /** What is to be decided. */
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
    /** The approval. */
    approval_id: string;
    /** `approved`, `rejected` or `mixed`. */
    outcome: string;
    /** Who decided. */
    by: string;
    /** True when a policy decided, not a person. */
    automatic: boolean;
    /** What the decider said. */
    note?: string | null;
    /** The decision on each item. */
    items: DecidedItem[];
  };
}

/** Nobody decided in time. */
export interface ApprovalExpired extends Envelope {
  event: {
    category: "approval";
    action: "expired";
  };
  data: {
    /** The approval. */
    approval_id: string;
    /** Which deadline passed. */
    reason: string;
  };
}

/** The decision is not needed any more. May follow the run's end. */
export interface ApprovalWithdrawn extends Envelope {
  event: {
    category: "approval";
    action: "withdrawn";
  };
  data: {
    /** The approval. */
    approval_id: string;
    /** Why: the run ended, was cancelled, … */
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
    /** The rule's id. */
    automation: string;
    /** The event that it matched. */
    trigger: string;
    /** The delivery; the same over all its attempts. */
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
    /** The rule's id. */
    automation: string;
    /** The rule's name. */
    workflow: string;
    /** The delivery. */
    delivery_id: string;
    /** The receiver's last HTTP status. */
    status_code?: number | null;
    /** What came of it, for people. */
    result: string;
    /** How many attempts were made. */
    attempts: number;
    /** From the first attempt to the end, in seconds. */
    duration_s: number;
    /** What went wrong. */
    error?: ErrorInfo | null;
  };
}

/** A delivery failed for good. */
export interface AutomationFailed extends Envelope {
  event: {
    category: "automation";
    action: "failed";
  };
  data: {
    /** The rule's id. */
    automation: string;
    /** The rule's name. */
    workflow: string;
    /** The delivery. */
    delivery_id: string;
    /** The receiver's last HTTP status. */
    status_code?: number | null;
    /** What came of it, for people. */
    result: string;
    /** How many attempts were made. */
    attempts: number;
    /** From the first attempt to the end, in seconds. */
    duration_s: number;
    /** What went wrong. */
    error?: ErrorInfo | null;
  };
}

/** The whole state, in place of what was known. */
export interface StateSnapshot extends Envelope {
  event: {
    category: "state";
    action: "snapshot";
  };
  data: {
    /** The state. */
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
    /** A JSON Patch (RFC 6902); the state begins as {}. */
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
    /** The messages, oldest first. */
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
    /** Its version; the first is 0. */
    version?: number | null;
    /** Its media type (MIME). */
    media_type?: string | null;
    /** Its size in bytes. */
    size_bytes?: number | null;
    /** SHA-256 hex of its content. */
    digest?: string | null;
    /** Where to fetch it. */
    uri?: string | null;
  };
}

/** An upstream event that has no place of its own in the contract. */
export interface CustomEvent extends Envelope {
  event: {
    category: "custom";
    action: "event";
  };
  data: {
    /** Whose event it is: `agno`, `adk`, `agui`. */
    protocol: string;
    /** The event's name there. */
    name: string;
    /** The event itself. */
    value: unknown;
  };
}

/** Something to know; the run goes on. */
export interface SystemWarning extends Envelope {
  event: {
    category: "system";
    action: "warning";
  };
  data: {
    /** What to know, for people. */
    message: string;
    /** A short name of it. */
    code: string;
    /** What else is known. */
    detail?: unknown;
  };
}

/** Something went wrong that did not end the run. */
export interface SystemError extends Envelope {
  event: {
    category: "system";
    action: "error";
  };
  data: {
    /** What went wrong, for people. */
    message: string;
    /** A short name of it. */
    code: string;
    /** What else is known. */
    detail?: unknown;
  };
}

/** Gauges of a machine or process; further ones stand beside the named. */
export interface SystemMetrics extends Envelope {
  event: {
    category: "system";
    action: "metrics";
  };
  data: {
    /** CPU in use, percent. */
    cpu?: number | null;
    /** Memory in use, with its unit. */
    memory_used?: string | null;
    /** Disk space free, with its unit. */
    disk_free?: string | null;
    /** Containers that run. */
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
  "system.metrics": SystemMetrics;
}

export type EventType = keyof EventMap;

export type EventOf<T extends EventType> = EventMap[T];

export type PenstockEvent = EventMap[EventType];

/** A run ends at the first of these. */
export type TerminalType = "lifecycle.cancelled" | "lifecycle.completed" | "lifecycle.failed";

/** What stands on the bus in place of an event over 512 KiB. */
export interface LargeEvent {
  penstock_object: string;
}

/** What every unified event is: root fields, and a payload by its type. */
export interface UnifiedEnvelope {
  /** A UUID, unique and stable: the same event has the same id when replayed. */
  event_id: string;
  /** The conversation (thread). */
  session_id: string;
  /** When it was received: RFC 3339, UTC. */
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
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The session. */
    session_id: string;
    /** The agent's id. */
    agent: string;
    /** Whose run it is. */
    metadata: SessionMetadata;
  };
}

/** A run of the session ended. */
export interface UnifiedSessionEnded extends UnifiedEnvelope {
  type: "session_ended";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The session. */
    session_id: string;
    /** `completed`, `failed` or `cancelled`. */
    reason: string;
    /** The final text, or what went wrong. */
    summary: string;
  };
}

/** A message begins. */
export interface UnifiedAgentMessageStart extends UnifiedEnvelope {
  type: "agent_message_start";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** Who speaks. */
    agent: string;
    /** The message. */
    message_id: string;
  };
}

/** A piece of a message's text. */
export interface UnifiedAgentMessageDelta extends UnifiedEnvelope {
  type: "agent_message_delta";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The message that it continues. */
    message_id: string;
    /** The next piece. */
    delta: string;
  };
}

/** A message is whole. */
export interface UnifiedAgentMessageEnd extends UnifiedEnvelope {
  type: "agent_message_end";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The message. */
    message_id: string;
    /** The whole text. */
    content: string;
  };
}

/** The model asked for a tool. */
export interface UnifiedToolCallStarted extends UnifiedEnvelope {
  type: "tool_call_started";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The call. */
    tool_call_id: string;
    /** The tool. */
    tool_name: string;
    /** Who asked. */
    agent: string;
    /** The tool's arguments. */
    args: Record<string, unknown>;
  };
}

/** A tool tells how far it is. */
export interface UnifiedToolCallDelta extends UnifiedEnvelope {
  type: "tool_call_delta";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The call. */
    tool_call_id: string;
    /** A piece of output. */
    delta: string;
  };
}

/** What a call came to. */
export interface UnifiedToolCallResult extends UnifiedEnvelope {
  type: "tool_call_result";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The call. */
    tool_call_id: string;
    /** The tool. */
    tool_name: string;
    /** What it returned, as JSON. */
    result: unknown;
    /** Whether it failed, was rejected or expired; beyond the document's fields. */
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
    /** The step. */
    step_id: string;
    /** What it does. */
    description: string;
  };
}

/** A step ended well. */
export interface UnifiedWorkflowStepCompleted extends UnifiedEnvelope {
  type: "workflow_step_completed";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** The step. */
    step_id: string;
    /** What it came to, or null. */
    output: unknown;
  };
}

/** The workflow goes from one step to another. */
export interface UnifiedWorkflowTransition extends UnifiedEnvelope {
  type: "workflow_transition";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** The step that chose. */
    from_step: string;
    /** The step that comes. */
    to_step: string;
    /** Why this one. */
    reason: string;
  };
}

/** A workflow ended well. */
export interface UnifiedWorkflowCompleted extends UnifiedEnvelope {
  type: "workflow_completed";
  payload: {
    /** The run's id, as in every other payload. */
    run_id: string;
    /** What it came to. */
    result: WorkflowResult;
  };
}

/** A piece of a model's thoughts. */
export interface UnifiedAgentThought extends UnifiedEnvelope {
  type: "agent_thought";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** Who thinks. */
    agent: string;
    /** The next piece. */
    content: string;
    /** True when not meant for users. */
    debug: boolean;
  };
}

/** Something failed; whether the run ended is said by `session_ended`. */
export interface UnifiedRunError extends UnifiedEnvelope {
  type: "run_error";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The class or code of the error. */
    error_type: string;
    /** What went wrong, for people. */
    message: string;
    /** Where it went wrong. */
    agent: string;
    /** In which step, or null. */
    step: string | null;
  };
}

/** Something failed and is tried again. */
export interface UnifiedRunRetry extends UnifiedEnvelope {
  type: "run_retry";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** Which retry begins: 1 is the first. */
    retry_count: number;
    /** How many there may be. */
    max_retries: number;
    /** What failed. */
    reason: string;
  };
}

/** The run was stopped (`user_stop`), or waits for a person (`approval_required`). */
export interface UnifiedRunInterrupted extends UnifiedEnvelope {
  type: "run_interrupted";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** Why it was interrupted. */
    reason: string;
    /** The step under way, or null. */
    step: string | null;
  };
}

/** A search of a knowledge base begins. */
export interface UnifiedRetrievalStarted extends UnifiedEnvelope {
  type: "retrieval_started";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** What is looked for. */
    query: string;
    /** Who looks. */
    agent: string;
  };
}

/** What a search found. */
export interface UnifiedRetrievalResult extends UnifiedEnvelope {
  type: "retrieval_result";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** What was found, best first. */
    documents: RetrievedDocument[];
  };
}

/** A rule matched an event. */
export interface UnifiedAutomationTriggered extends UnifiedEnvelope {
  type: "automation_triggered";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The rule's name. */
    workflow: string;
    /** The event that it matched. */
    trigger: string;
  };
}

/** A delivery ended; one that failed says so in `result` (`failed: …`). */
export interface UnifiedAutomationCompleted extends UnifiedEnvelope {
  type: "automation_completed";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** The rule's name. */
    workflow: string;
    /** What came of it, for people. */
    result: string;
  };
}

/** Gauges of a machine or process; null for what is not told. */
export interface UnifiedMetricsUpdate extends UnifiedEnvelope {
  type: "metrics_update";
  payload: {
    /** The run's id, beyond the document's fields. */
    run_id: string;
    /** CPU in use, percent. */
    cpu: number | null;
    /** Memory in use, with its unit. */
    memory_used: string | null;
    /** Disk space free, with its unit. */
    disk_free: string | null;
    /** Containers that run. */
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
