// What the page may do in the demo: nothing, outside of it. `penstock up --demo` serves its own script here.

/** The path of the request that kills the demo's connector, or null. */
export const END_CONNECTOR = null;
