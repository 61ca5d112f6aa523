// @ts-check
// Follows a stream of events over an EventSource, which continues after a lost connection with the
// cursor of the last event.

const AGAIN_MS = [500, 1000, 2000, 5000];
// A browser has six connections to a host for all its tabs and windows, if the host speaks HTTP/1.1.
// Streams take these, so that two are left for requests.
const CONNECTIONS = Array.from({ length: 4 }, (_, number) => `penstock-stream-${number}`);
const TURN_MS = 3000; // after so long, a stream makes room for one that waits

/**
 * Wait for one of the connections for streams, which the abort of `signal` gives back. From time to
 * time, if others wait meanwhile, `makeRoom` is called, which must abort `signal` and may wait again.
 * Without locks, which browsers have only for HTTPS and for this machine, nobody waits.
 */
export async function connection(signal, makeRoom) {
  const giveBack = await granted(signal);
  if (giveBack === null) return;
  const turn = setInterval(async () => (await othersWait()) && !signal.aborted && makeRoom(), TURN_MS);
  const end = () => {
    clearInterval(turn);
    giveBack();
  };
  if (signal.aborted) end();
  else signal.addEventListener("abort", end);
}

/** @returns {Promise<(() => void) | null>} */
function granted(signal) {
  if (!navigator.locks) return Promise.resolve(null);
  const waits = new AbortController();
  signal.addEventListener("abort", () => waits.abort());
  return new Promise((found) => {
    for (const name of CONNECTIONS) {
      const take = () => {
        if (waits.signal.aborted) return undefined; // another one was free first
        waits.abort();
        return new Promise((giveBack) => found(() => giveBack(undefined)));
      };
      // A browser that blocks what a page stores refuses its locks, too.
      navigator.locks.request(name, { signal: waits.signal }, take).catch(() => waits.signal.aborted || found(null));
    }
  });
}

async function othersWait() {
  const { pending = [] } = await navigator.locks.query();
  return pending.some(({ name = "" }) => CONNECTIONS.includes(name));
}

/**
 * Follow the stream at `path`, which has a query already.
 *
 * `take(event)` gets each message. `state(word)` gets `live` or `lost` when it changes. `ended()` is
 * called when the server refuses to continue; it returns whether to connect again. `names` are the
 * names of the stream's events. The stream begins behind the cursor `after`, if there is one.
 *
 * Only a page that is seen has a stream; a page that was left or is behind others goes on with its
 * cursor when it is seen again. If more streams are seen than there are connections, they take turns.
 */
export function follow(path, { take, state, ended = async () => true, names = ["message"], after = null }) {
  let attempt = null; // waits for a connection, or has one; its abort ends it
  let cursor = after;
  let failures = 0;
  let timer = 0;
  let closed = false;

  const open = async () => {
    clearTimeout(timer);
    if (attempt !== null) return;
    attempt = new AbortController();
    const { signal } = attempt;
    await connection(signal, () => {
      stop();
      open();
    });
    if (signal.aborted) return;
    const source = new EventSource(cursor === null ? path : `${path}&after=${encodeURIComponent(cursor)}`);
    signal.addEventListener("abort", () => source.close());
    source.onopen = () => {
      failures = 0;
      state("live");
    };
    for (const name of names) {
      source.addEventListener(name, (message) => {
        if (signal.aborted) return;
        if (message.lastEventId) cursor = message.lastEventId;
        take(message);
      });
    }
    source.onerror = async () => {
      if (signal.aborted) return;
      state("lost");
      if (source.readyState !== EventSource.CLOSED) return;
      stop();
      const again = await ended();
      if (closed || !again || document.hidden) return;
      clearTimeout(timer);
      timer = setTimeout(open, AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)]);
      failures += 1;
    };
  };

  const stop = () => {
    clearTimeout(timer);
    attempt?.abort();
    attempt = null;
  };
  const look = () => {
    if (document.hidden) stop();
    else if (!closed) open();
  };
  const shown = (event) => event.persisted && look();
  addEventListener("pagehide", stop);
  addEventListener("pageshow", shown);
  document.addEventListener("visibilitychange", look);
  look();
  return {
    close() {
      closed = true;
      removeEventListener("pagehide", stop);
      removeEventListener("pageshow", shown);
      document.removeEventListener("visibilitychange", look);
      stop();
    },
  };
}

const REST = 3; // a drawing is followed by so many times its time without one
const FRAME_MS = 16;
const HIDDEN_MS = 250;

/**
 * Return a function that calls `draw` once for all its calls before the next frame. If `draw` calls
 * its argument when it has drawn, slow drawings come less often, so that events are read meanwhile.
 */
export function oncePerFrame(draw) {
  let isDue = false;
  let restUntil = 0;
  const run = () => {
    isDue = false;
    const begun = performance.now();
    draw(() => (restUntil = performance.now() + REST * (performance.now() - begun)));
  };
  return () => {
    if (isDue) return;
    isDue = true;
    const rest = restUntil - performance.now();
    // A hidden page gets no frames.
    if (document.hidden || rest > FRAME_MS) setTimeout(run, document.hidden ? HIDDEN_MS : rest);
    else requestAnimationFrame(run);
  };
}
