import type {
  AgentRunner,
  AgentRunnerConnectRequest,
  AgentRunnerIsRunningRequest,
  AgentRunnerRunRequest,
  AgentRunnerStopRequest,
} from "@copilotkit/runtime/v2";

export interface PenstockAgentRunnerOptions {
  /** The address of Penstock's edges, such as `https://penstock.example`. */
  url: string;
  /** Agents of Penstock by the names that CopilotKit has for them; without an entry, the same name. */
  agents?: Record<string, string>;
  /** Headers of every request, such as `authorization`; those of the agent and the browser go first. */
  headers?: Record<string, string>;
  /** Seconds for which a stream that broke is tried again. Default: 60. */
  retrySeconds?: number;
}

/** Runs are kept by Penstock, so this runner has no state that a restart could lose. */
export declare class PenstockAgentRunner extends AgentRunner {
  constructor(options: PenstockAgentRunnerOptions);
  run(request: AgentRunnerRunRequest): ReturnType<AgentRunner["run"]>;
  connect(request: AgentRunnerConnectRequest): ReturnType<AgentRunner["connect"]>;
  isRunning(request: AgentRunnerIsRunningRequest): Promise<boolean>;
  stop(request: AgentRunnerStopRequest): Promise<boolean>;
}
