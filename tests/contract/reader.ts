// What a reader in TypeScript does with the declarations; it must compile as it stands.

import type {
  Envelope,
  EventOf,
  EventType,
  LargeEvent,
  PenstockEvent,
  TerminalType,
  UnifiedEvent,
} from "./penstock.js";

// The guard that penstock.d.ts recommends.
const isType = <T extends EventType>(event: Envelope, type: T): event is EventOf<T> =>
  `${event.event.category}.${event.event.action}` === type;

export function tool(event: Envelope): string | undefined {
  if (isType(event, "llm.tool_call")) {
    const args: Record<string, unknown> = event.data.args;
    return `${event.data.tool}(${Object.keys(args).join(", ")})`;
  }
  // @ts-expect-error: not narrowed, so nobody knows what it is
  return event.data.tool;
}

// Every event of ours is an envelope, so it goes where an unknown one goes.
export const seen = (event: PenstockEvent): Envelope => event;

// An event of a type and with fields of the future is an envelope, too.
export const future: Envelope = {
  run_id: "0198c5a0-7b1e-7c3a-9d52-4f6e8a1b2c3d",
  timestamp: "2025-12-31T10:00:00.000Z",
  sequence: 1,
  source: null,
  event: { category: "billing", action: "charged" },
  data: { cents: 12 },
};

// @ts-expect-error: a type that there is not
export type Nothing = EventOf<"llm.shouted">;

export const ends: Record<TerminalType, boolean> = {
  "lifecycle.cancelled": true,
  "lifecycle.completed": true,
  "lifecycle.failed": true,
};

export const whole = (body: Envelope | LargeEvent): string =>
  "penstock_object" in body ? body.penstock_object : body.run_id;

// The unified events are told apart by `type`.
export function line(event: UnifiedEvent): string {
  switch (event.type) {
    case "agent_message_delta":
      return event.payload.delta;
    case "run_error":
      return `${event.payload.error_type}: ${event.payload.message}`;
    case "session_started":
      return event.payload.metadata.user_id;
    default:
      return event.type; // also what a later version sends
  }
}
