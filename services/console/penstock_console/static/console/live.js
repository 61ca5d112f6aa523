// @ts-check
// Follows a stream of events over an EventSource, which continues after a lost connection with the
// cursor of the last event.

const AGAIN_MS = [500, 1000, 2000, 5000];

/**
 * Follow the stream at `path`, which has a query already.
 *
 * `take(event)` gets each message. `state(word)` gets `live` or `lost` when it changes. `ended()` is
 * called when the server refuses to continue; it returns whether to connect again. `names` are the
 * names of the stream's events. The stream begins behind the cursor `after`, if there is one.
 */
export function follow(path, { take, state, ended = async () => true, names = ["message"], after = null }) {
  let source = null;
  let cursor = after;
  let failures = 0;
  let timer = 0;
  let closed = false;

  const open = () => {
    clearTimeout(timer);
    if (source !== null) return;
    const opened = new EventSource(cursor === null ? path : `${path}&after=${encodeURIComponent(cursor)}`);
    source = opened;
    opened.onopen = () => {
      failures = 0;
      state("live");
    };
    for (const name of names) {
      opened.addEventListener(name, (message) => {
        if (source !== opened) return;
        if (message.lastEventId) cursor = message.lastEventId;
        take(message);
      });
    }
    opened.onerror = async () => {
      if (source !== opened) return;
      state("lost");
      if (opened.readyState !== EventSource.CLOSED) return;
      source = null;
      const again = await ended();
      if (closed || !again || document.hidden) return;
      clearTimeout(timer);
      timer = setTimeout(open, AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)]);
      failures += 1;
    };
  };

  const stop = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  // A browser has six connections to a host for all its tabs. So only a page that is seen has a
  // stream; a page that was left or is behind others goes on with its cursor when it is seen again.
  const look = () => {
    if (document.hidden) stop();
    else if (source === null && !closed) open();
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

/** Return a function that calls `draw` once for all its calls before the next frame. */
export function oncePerFrame(draw) {
  let isDue = false;
  const run = () => {
    isDue = false;
    draw();
  };
  return () => {
    if (isDue) return;
    isDue = true;
    // A hidden page gets no frames.
    if (document.hidden) setTimeout(run, 250);
    else requestAnimationFrame(run);
  };
}
