// @ts-check
// Lays out a run's items in time: a lane for each source, and no room for long pauses. No DOM.

const GAP_MS = 5000; // in a longer time without a change, the scale has a break
const BREAK_MS = 1000; // a break is as wide as so much time
const NEAR = 1 / 400; // bars of a row that are nearer than this part of the width become one
const MOST_LANES = 60; // the items of further sources share the last lane

const ROLES = { worker: "worker", team_supervisor: "team" };

/** The lanes in which items of a kind are; each has a kind and a name. */
const SOURCES = {
  message: (item) => [ROLES[item.role] ?? "agent", item.who ?? ""],
  reasoning: (item) => [ROLES[item.role] ?? "agent", item.who ?? ""],
  tool: (item) => ["tool", item.tool ?? ""],
  approval: () => ["approval", ""],
  step: () => ["step", ""],
  delivery: (item) => ["delivery", item.name],
};
const LABELS = {
  message: () => "message",
  reasoning: () => "reasoning",
  tool: (item) => item.state ?? "called",
  approval: (item) => item.outcome ?? "waits for a person",
  step: (item) => item.name,
  delivery: (item) => item.state,
};

/**
 * Return where each moment of a run is on the scale: a function from milliseconds to 0…1, and the
 * breaks, each with its place and how long it is.
 */
export function scale(moments) {
  const sorted = [...new Set(moments)].sort((one, other) => one - other);
  const stops = []; // each moment, and the place of it in milliseconds of the scale
  const breaks = [];
  let place = 0;
  sorted.forEach((moment, index) => {
    const passed = index ? moment - sorted[index - 1] : 0;
    if (passed > GAP_MS) breaks.push({ at: place + BREAK_MS / 2, ms: passed });
    place += passed > GAP_MS ? BREAK_MS : passed;
    stops.push([moment, place]);
  });
  const whole = place || 1;
  const at = (moment) => {
    let [low, high] = [0, stops.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (stops[middle][0] < moment) low = middle + 1;
      else high = middle;
    }
    return stops.length ? stops[low][1] / whole : 0;
  };
  return { at, breaks: breaks.map(({ at: where, ms }) => ({ at: where / whole, ms })) };
}

/**
 * Return the lanes of these items. `now` (milliseconds) is where open items end. Each lane has
 * `kind`, `name` and `rows` of bars; each bar has `from` and `to` (0…1), `label`, `state`, `took`
 * in milliseconds, `count`, and the `item`.
 */
export function lanes(items, now) {
  const shown = items
    .filter((item) => item.kind in SOURCES)
    .map((item) => ({ item, begin: Date.parse(item.at), end: item.until ? Date.parse(item.until) : now }));
  const { at, breaks } = scale(shown.flatMap(({ begin, end }) => [begin, Math.max(begin, end)]));
  const found = new Map();
  for (const { item, begin, end } of shown) {
    let [kind, name] = SOURCES[item.kind](item);
    let key = `${kind} ${name}`;
    if (!found.has(key) && found.size >= MOST_LANES) [kind, name, key] = ["", "other sources", "other"];
    if (!found.has(key)) found.set(key, { kind, name, rows: [] });
    const took = Math.max(0, end - begin);
    place(found.get(key).rows, {
      from: at(begin),
      to: at(begin + took),
      label: LABELS[item.kind](item),
      state: item.state ?? (item.until ? "completed" : "running"),
      took,
      count: 1,
      item,
    });
  }
  return { lanes: [...found.values()], breaks };
}

/** Put a bar into the first row in which it has room. */
function place(rows, bar) {
  for (const row of rows) {
    const last = row.at(-1);
    if (bar.from >= last.to) {
      const isNear = bar.to - last.from < NEAR && bar.state === last.state;
      if (!isNear) row.push(bar);
      else Object.assign(last, { to: Math.max(last.to, bar.to), took: last.took + bar.took, count: last.count + 1 });
      return;
    }
  }
  rows.push([bar]);
}
