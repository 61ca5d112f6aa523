// @ts-check
// React hooks for Penstock. All state comes from the run's own events, so a page that is loaded again
// shows the same.

import { isNotice, isType, typeOf } from "@penstock/client";
import { createContext, createElement, useCallback, useContext, useEffect, useRef, useState } from "react";

const Penstock = createContext(null);

/** Give the hooks below it a client. */
export function PenstockProvider({ client, children }) {
  return createElement(Penstock.Provider, { value: client }, children);
}

/** Return the client of the nearest provider. */
export function useClient() {
  const client = useContext(Penstock);
  if (client === null) throw new Error("there is no <PenstockProvider client={…}> around this component");
  return client;
}

const BEGINNING = { status: "connecting", text: "", events: [], approvalId: null, result: null, error: null };

/** Return the state after one more event. Pure. */
export const after = (state, event) => ({ ...changed(state, event), events: [...state.events, event] });

/** Return the state after one more event, without this event in its list. */
function changed(state, event) {
  const next = { ...state };
  if (isNotice(event)) return next;
  if (isType(event, "lifecycle.started") || isType(event, "lifecycle.resumed")) next.status = "running";
  else if (isType(event, "llm.stream")) next.text += event.data.content;
  else if (isType(event, "lifecycle.paused")) {
    next.status = "paused";
    next.approvalId = event.data.approval_id;
  } else if (isType(event, "lifecycle.completed")) {
    next.status = "completed";
    next.result = event.data.summary ?? null;
  } else if (isType(event, "lifecycle.failed")) {
    next.status = "failed";
    next.error = new Error(event.data.error);
  } else if (isType(event, "lifecycle.cancelled")) next.status = "cancelled";
  if (next.status !== "paused") next.approvalId = null;
  return next;
}

/**
 * Follow a run from its beginning to its end, whenever it was started. With null, nothing is followed.
 * A component that goes away leaves the stream, and the run goes on.
 */
export function useRun(runId) {
  const client = useClient();
  const [shown, setShown] = useState({ runId, state: BEGINNING });
  useEffect(() => {
    if (runId === null) return undefined;
    const control = new AbortController();
    let state = BEGINNING;
    let isDue = false;
    const events = []; // a copy for each event would take a minute for 50,000 of them
    const draw = () => {
      isDue = false;
      if (!control.signal.aborted) setShown({ runId, state: { ...state, events: [...events] } });
    };
    const show = (next) => {
      state = next;
      // Events may come faster than React can draw, so several make one state.
      if (!isDue) setTimeout(draw, 16);
      isDue = true;
    };
    const follow = async () => {
      try {
        for await (const event of client.follow(runId, { signal: control.signal })) {
          events.push(event);
          show(changed(state, event));
        }
      } catch (error) {
        if (!control.signal.aborted) show({ ...state, error });
      }
    };
    void follow();
    return () => control.abort(new Error("the component has gone"));
  }, [client, runId]);
  const cancel = useCallback(() => client.cancel(runId), [client, runId]);
  const state = shown.runId === runId ? shown.state : BEGINNING;
  return { ...state, cancel };
}

/** Return the approvals that wait for the caller, and read them again with each change. */
export function useApprovals(filters = {}) {
  const client = useClient();
  const [state, setState] = useState({ approvals: null, error: null });
  const key = JSON.stringify(filters);
  useEffect(() => {
    const control = new AbortController();
    const read = async () => {
      const approvals = [];
      for await (const each of client.approvals({ status: "pending", ...JSON.parse(key) })) approvals.push(each);
      if (!control.signal.aborted) setState({ approvals, error: null });
    };
    const follow = async () => {
      try {
        // The first message of each connection comes before all changes.
        for await (const _ of client.approvalChanges({ signal: control.signal })) await read();
      } catch (error) {
        if (!control.signal.aborted) setState((state) => ({ ...state, error }));
      }
    };
    void follow();
    return () => control.abort(new Error("the component has gone"));
  }, [client, key]);
  return state;
}

/**
 * Read one approval and decide it; draws nothing itself. `children` gets `approval` (null until it is
 * read), `decide(items, note)`, `isDeciding` and `error`. A decision is bound to the approval that
 * `children` got: if the request has changed since, the service refuses it, and it is read again.
 */
export function Approval({ id, children }) {
  const client = useClient();
  const [approval, setApproval] = useState(null);
  const [error, setError] = useState(null);
  const [isDeciding, setIsDeciding] = useState(false);
  const present = useRef(id);
  present.current = id;
  const read = useCallback(async () => {
    try {
      const found = await client.approval(id);
      if (present.current === id) setApproval(found);
    } catch (reason) {
      if (present.current === id) setError(reason);
    }
  }, [client, id]);
  useEffect(() => {
    setApproval(null);
    setError(null);
    void read();
  }, [read]);
  const decide = async (items, note) => {
    setIsDeciding(true);
    setError(null);
    try {
      const decided = await client.decide(approval, items, note);
      if (present.current === id) setApproval(decided);
    } catch (reason) {
      if (present.current === id) setError(reason);
      await read();
    } finally {
      setIsDeciding(false);
    }
  };
  return children({ approval, decide, isDeciding, error });
}

export { typeOf };
