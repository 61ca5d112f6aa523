// @ts-check
// The errors of calls. Each text says what is wrong.

/** A call failed. */
export class PenstockError extends Error {
  /** @param {string} text @param {{ cause?: unknown }} [options] */
  constructor(text, options) {
    super(text, options);
    this.name = new.target.name;
  }
}

/** No Penstock answers at the URL. */
export class Unreachable extends PenstockError {}

/** A run has not ended within the caller's time. It goes on; its stream continues after `cursor`. */
export class DeadlineReached extends PenstockError {
  /** @param {number} deadlineMs @param {string | null} cursor */
  constructor(deadlineMs, cursor) {
    super(`the run has not ended within ${deadlineMs} ms; it goes on`);
    this.cursor = cursor;
  }
}

/** The service refused the request, with RFC 9457 problem details. */
export class ApiError extends PenstockError {
  /**
   * @param {number} status
   * @param {string} detail
   * @param {{ field: string, message: string }[]} [errors] the invalid fields
   */
  constructor(status, detail, errors = []) {
    super(`${detail} (${status})`);
    this.status = status;
    this.detail = detail;
    this.errors = errors;
  }
}

/** The events at a cursor no longer exist, so the stream begins again without a cursor. */
export class CursorGone extends ApiError {}

/** Return the error for an answer. @param {Response} response */
export async function refusal(response) {
  const text = await response.text();
  let detail = text.slice(0, 200) || response.statusText;
  let errors;
  try {
    ({ detail, errors } = JSON.parse(text));
  } catch {
    // it is no problem of ours, but of a proxy
  }
  const Kind = response.status === 410 ? CursorGone : ApiError;
  return new Kind(response.status, detail, errors);
}
