import type { ApprovalRecord, Client, Envelope, ItemDecision, Notice } from "@penstock/client";
import type { ReactNode } from "react";

export { typeOf } from "@penstock/client";

/** Give the hooks below it a client. */
export function PenstockProvider(props: { client: Client; children?: ReactNode }): ReactNode;
/** Return the client of the nearest provider. */
export function useClient(): Client;

export interface RunState {
  status: "connecting" | "running" | "paused" | "completed" | "failed" | "cancelled";
  /** The text that the agent has written so far. */
  text: string;
  events: readonly (Envelope | Notice)[];
  /** The approval that the run waits for. */
  approvalId: string | null;
  /** What the run ended with. */
  result: string | null;
  /** Why the run failed, or why it cannot be followed. */
  error: Error | null;
}

/** Return the state after one more event. Pure. */
export function after(state: RunState, event: Envelope | Notice): RunState;

/** Follow a run from its beginning to its end, whenever it was started. With null, nothing. */
export function useRun(runId: string | null): RunState & { cancel: () => Promise<Record<string, unknown>> };

/** Return the approvals that wait for the caller: null until they were read. */
export function useApprovals(filters?: Record<string, string>): {
  approvals: readonly ApprovalRecord[] | null;
  error: Error | null;
};

/** Read one approval and decide it; draws nothing itself. */
export function Approval(props: {
  id: string;
  children: (state: {
    approval: ApprovalRecord | null;
    decide: (items: boolean | readonly ItemDecision[], note?: string) => Promise<void>;
    isDeciding: boolean;
    error: Error | null;
  }) => ReactNode;
}): ReactNode;
