"""`penstock run`, `events`, `cancel` and `runs`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Annotated, Any, Final

import typer

from penstock import sse
from penstock_cli.commands.options import (
    Input,
    Limit,
    RunId,
    Session,
    Tags,
    Wait,
    YesOrNo,
    client,
)
from penstock_cli.terminal import approvals, render
from penstock_cli.terminal.api import CONFLICT, NOT_FOUND, Api
from penstock_cli.terminal.approvals import Item, waits
from penstock_cli.terminal.output import Output, command
from penstock_client import ApiError, PenstockError, path_of

WAITS = 4  # The exit code if the run waits for an approval that this command has not answered.
INTERRUPTED = 130  # The exit code that shells use for Ctrl-C.
EXIT_CODES = {"completed": 0, "failed": 1, "cancelled": 3, "paused": WAITS}
_STEP_ENDS = frozenset({"step_completed", "step_failed"})
_ENDED = frozenset({"completed", "failed", "cancelled"})

# A function that decides an approval. The function returns None if other people should decide.
Answer = Callable[[Mapping[str, Any]], list[Item] | None]


def start(api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    """Start a run of an agent and return its record. If the agent is unknown and a stored workflow
    has the name, the error says how to start it."""
    agent, message = body["agent"], body["message"]
    try:
        return api.start_with("/v1/runs", body)
    except ApiError as error:
        if error.status != NOT_FOUND or not _is_workflow(api, agent):
            raise
        right = command(api.url, "workflow", "run", agent, message)
        raise PenstockError(
            f"{agent} is a workflow and no agent; start it with: {right}"
        ) from error


def _is_workflow(api: Api, name: str) -> bool:
    try:
        api.call("GET", path_of("workflows", name), repeat=False)
    except PenstockError:
        return False
    return True


class Follower:
    """Follows one run in the terminal, and answers its approvals."""

    def __init__(
        self,
        api: Api,
        output: Output,
        *,
        answer: Answer | None = None,
        wait: bool = True,
        children: bool = True,
    ) -> None:
        """Prepare to follow a run.

        `answer` decides approvals; None leaves decisions to other people. With `wait`, the run is
        followed further while other people decide. With `children`, the events of the runs of a
        workflow's steps are shown, too.
        """
        self._api = api
        self._output = output
        self._answer = answer
        self._wait = wait
        self._children = children
        self._view = render.View()
        self._cursor: str | None = None

    def follow(self, run_id: str, after: str | None = None) -> int:
        """Follow a run until it ends. Return the exit code, which says how it ended."""
        self._cursor = after
        try:
            frames = self._api.follow(run_id, after=after, children=self._children)
            with closing(frames):
                for frame in frames:
                    self._cursor = frame.id or self._cursor
                    code = self._on_event(run_id, json.loads(frame.data))
                    if code is not None:
                        return code
        except KeyboardInterrupt:
            since = ("--after", self._cursor) if self._cursor else ()
            self._notice(
                f"the run goes on. Come back: {command(self._api.url, 'events', run_id, *since)}\n"
                f"Stop it: {command(self._api.url, 'cancel', run_id)}"
            )
            return INTERRUPTED
        # The stream had no frames, because the cursor was at the run's end.
        return EXIT_CODES.get(self._api.run(run_id)["status"], 1)

    def _on_event(self, run_id: str, event: dict[str, Any]) -> int | None:
        if self._output.as_json:
            self._output.json_line(event)
        else:
            self._output.pieces(self._view.render(event))
        if event["event"]["category"] != "lifecycle":
            return None
        action = event["event"]["action"]
        if action == "paused":
            return self._on_pause(run_id, event["data"]["approval_id"])
        return EXIT_CODES.get(action)

    def _on_pause(self, run_id: str, approval_id: str) -> int | None:
        approval = self._api.approval(approval_id)
        if approval["status"] != "pending":
            return None  # the event is old, and the request is not open any more
        if self._answered(approval):
            return None
        url = self._api.url
        self._notice(
            f"the run waits. To allow it: {command(url, 'approvals', 'approve', approval_id)}\n"
            f"To refuse: {command(url, 'approvals', 'reject', approval_id)}"
        )
        if self._wait:
            if self._output.is_interactive:
                self._notice("This command follows the run until others decide; Ctrl-C leaves it.")
            return None
        since = ("--after", self._cursor) if self._cursor else ()
        self._notice(
            f"This command ends here with exit code {WAITS}; the run goes on after the decision. "
            f"To follow it: {command(url, 'events', run_id, *since)}"
        )
        return WAITS

    def _answered(self, approval: Mapping[str, Any]) -> bool:
        while self._answer is not None and (items := self._answer(approval)) is not None:
            try:
                if told := waits(self._api.decide(approval, items, None)):
                    self._notice(f"{told}; others must approve, too")
                    return False
                return True
            except ApiError as error:
                self._notice(f"penstock: {error}")
                if error.status == CONFLICT:
                    return True  # another person has decided
                if not self._output.is_interactive:
                    self._wait = False  # the answer of --yes or --no does not fit this request
                    return False
        return False

    def _notice(self, text: str) -> None:
        self._output.pieces(self._view.end())
        self._output.notice(text)


def _open_steps(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the data of `workflow.step_started` of each step that has not ended.

    A step that was tried several times has that of the last attempt. A step that contains other
    open steps, such as a `for_each` with open items, is left out.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for event in events:
        name, data = event["event"], event["data"]
        action = name["action"] if name["category"] == "workflow" else ""
        if action == "step_started":
            found[data["step_id"]] = data
        elif action in _STEP_ENDS:
            found.pop(data["step_id"], None)
    containing = {each.get("parent_step_id") for each in found.values()}
    return [each for name, each in found.items() if name not in containing]


def _line_of_step(step: Mapping[str, Any]) -> str:
    """Return an open step as text, such as `step_scan (step), run 0199…, attempt 2`."""
    child, attempt = step.get("child_run_id"), step.get("attempt")
    return "".join(
        (
            step["step_id"],
            f" ({step['kind']})" if step.get("kind") else "",
            f", run {child}" if child else "",
            f", attempt {attempt}" if attempt else "",
        )
    )


app = typer.Typer(help="List runs, or show one.", invoke_without_command=True)


@client
def run(
    api: Api,
    output: Output,
    message: Annotated[str, typer.Argument(help="What to say to the agent.")],
    agent: Annotated[str, typer.Option(help="The agent's id, see `penstock agents`.")],
    session: Session = None,
    answer: YesOrNo = None,
    wait: Wait = None,
    when_busy: Annotated[
        str,
        typer.Option(
            help="What happens while a run of the session is open: queue, refuse or interrupt."
        ),
    ] = "queue",
    tags: Tags = None,
) -> int:
    """Start a run and follow it. Ctrl-C ends only this command; the run continues."""
    wait = output.is_interactive if wait is None else wait
    follower = Follower(api, output, answer=answer_of(answer, output), wait=wait)
    body: dict[str, Any] = {"agent": agent, "message": message}
    if session is not None:
        body |= {"session_id": session, "when_busy": when_busy}
    if tags:
        body["tags"] = dict(tags)
    return follower.follow(start(api, body)["run_id"])


@app.command("again")
@client
def run_again(
    api: Api,
    output: Output,
    run_id: RunId,
    message: Annotated[str | None, typer.Option(help="Another message.")] = None,
    value: Input = None,
    answer: YesOrNo = None,
    wait: Wait = None,
) -> int:
    """Start a run anew with its message (a workflow: with its input), in a new session.

    The command first names the tools that the run has called, and at a terminal asks whether to
    start. The policy of approvals asks as ever.
    """
    record, found = api.run(run_id), api.events(run_id)
    tools = Counter(
        event["data"]["tool"]
        for event in found
        if event["event"] == {"category": "llm", "action": "tool_call"}
    )
    shown = ", ".join(f"{tool} ({count})" for tool, count in tools.items())
    output.notice(f"This run has called: {shown or 'no tool'}. The new run may call the same.")
    if output.is_interactive and output.ask("start it? y or n ") != "y":
        return 0
    wait = output.is_interactive if wait is None else wait
    follower = Follower(api, output, answer=answer_of(answer, output), wait=wait)
    return follower.follow(api.start_with(*_again(record, found, message, value))["run_id"])


@app.command("fork")
@client
def fork(
    api: Api,
    output: Output,
    run_id: RunId,
    sequence: Annotated[
        int | None,
        typer.Option(
            help="The number of the last event that is taken over. Default: the run's last event, "
            "so that a workflow goes on with the step that failed."
        ),
    ] = None,
    message: Annotated[
        str | None, typer.Option(help="What to say to the agent at this point.")
    ] = None,
    answer: YesOrNo = None,
    wait: Wait = None,
) -> int:
    """Start a run that goes on after an event of a run, and follow it.

    A workflow does no step again that had completed by then; an agent knows the conversation up to
    there. The command first says what is taken over and what may be done again, and at a terminal
    asks whether to start. The policy of approvals asks as ever.
    """
    path = path_of("runs", run_id, "fork")
    seen = api.call("GET", path, {"sequence": sequence})
    if not seen["possible"]:
        raise PenstockError(f"this run cannot be forked: {seen['reason']}")
    output.notice(_forecast(seen))
    if output.is_interactive and output.ask("start it? y or n ") != "y":
        return 0
    body = {"sequence": sequence, "message": message}
    given = {name: value for name, value in body.items() if value is not None}
    wait = output.is_interactive if wait is None else wait
    follower = Follower(api, output, answer=answer_of(answer, output), wait=wait)
    return follower.follow(api.start_with(path, given)["run_id"])


_COUNTED: Final = {
    "messages": ("message", "messages"),
    "tool_calls": ("result of a tool", "results of tools"),
}


def _forecast(seen: Mapping[str, Any]) -> str:
    taken, asked = seen["taken_over"], seen["asks_again"]
    again = (*seen["later_steps"], *seen["later_tools"])
    counted = [(taken[key], names) for key, names in _COUNTED.items() if taken[key]]
    parts = [*taken["steps"], *(f"{count} {names[count > 1]}" for count, names in counted)]
    return (
        f"After event {seen['sequence']}. Taken over: {', '.join(parts) or 'nothing'}. "
        + (f"People are asked again: {', '.join(asked)}. " if asked else "")
        + f"What the run did later, and the new one may do again: {', '.join(again) or 'nothing'}."
    )


def _again(
    record: Mapping[str, Any],
    found: Iterable[Mapping[str, Any]],
    message: str | None,
    value: Mapping[str, Any] | None,
) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of the request that starts a run anew."""
    forked: dict[str, Any] = {"forked_from": {"run_id": record["run_id"], "sequence": 0}}
    if record.get("tags"):
        forked["tags"] = record["tags"]
    told = {f"{e['event']['category']}.{e['event']['action']}": e["data"] for e in found}
    if (workflow := told.get("workflow.started")) is not None:
        given = dict(value if value is not None else workflow.get("input") or {})
        if message is not None:
            given["message"] = message
        return path_of("workflows", workflow["workflow"], "runs"), {"input": given, **forked}
    if message is None:
        message = told.get("lifecycle.started", record).get("message") or ""
    body = {"agent": record["agent"], "message": message, **forked}
    return "/v1/runs", body if value is None else {**body, "input": dict(value)}


def answer_of(approved: bool | None, output: Output) -> Answer | None:
    """Return the function that answers approvals. The function gives the same answer to all
    approvals, or asks the person at the terminal. Return None if nobody can be asked."""
    if approved is not None:
        return partial(approvals.decided, decision="approve" if approved else "reject")
    return partial(approvals.ask, output) if output.is_interactive else None


@client
def events(
    api: Api,
    output: Output,
    run_id: RunId,
    dialect: Annotated[
        str,
        typer.Option(
            help="`canonical` is shown for reading; any other dialect is written as it comes."
        ),
    ] = "canonical",
    after: Annotated[
        str | None, typer.Option(help="The cursor (an SSE `id`) after which to continue.")
    ] = None,
) -> int:
    """Follow a run's events from its start, or from a cursor."""
    if dialect == "canonical":
        return Follower(api, output).follow(run_id, after)
    with closing(api.follow(run_id, dialect=dialect, after=after)) as frames:
        for frame in frames:
            encoded = (
                frame.data.replace(b"\n", b" ")
                if output.as_json
                else sse.encode(frame.data, event=frame.event, id=frame.id).rstrip(b"\n") + b"\n"
            )
            output.text(encoded.decode("utf-8", "replace"))
    return 0


@client
def cancel(api: Api, output: Output, run_id: RunId) -> None:
    """Stop a run."""
    output.record(api.call("POST", path_of("runs", run_id, "cancel")))


@app.command("list")
@app.callback()
@client
def list_runs(
    api: Api,
    output: Output,
    status: Annotated[
        list[str] | None,
        typer.Option(
            help="queued, running, paused, completed, failed or cancelled; may be repeated."
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Runs of this agent only.")] = None,
    parent: Annotated[
        str | None, typer.Option(help="The runs of the steps of this workflow's run only.")
    ] = None,
    tags: Tags = None,
    text: Annotated[str | None, typer.Option(help="Runs with this text in their message.")] = None,
    limit: Limit = 20,
) -> None:
    """List runs, the newest first."""
    filters = {
        **{"status": status or None, "agent": agent, "parent_run_id": parent, "text": text},
        "tag": ["=".join(tag) for tag in tags or ()] or None,
    }
    runs, more = api.pages("/v1/runs", "runs", "before", limit, filters)
    columns = {"run": "run_id", "status": "status", "agent": "agent"}
    if any(run.get("step_id") for run in runs):
        columns["step"] = "step_id"
    columns |= {"created": "created_at", "message": "message"}
    if any(run.get("tags") for run in runs):
        columns["tags"] = "tags"
    output.listing(
        runs,
        tuple(columns),
        lambda run: [_shown(run.get(field)) for field in columns.values()],
        more=more,
    )


def _shown(value: Any) -> str:
    tags = value.items() if isinstance(value, dict) else ()
    return ", ".join(f"{key}={each}" for key, each in tags) or value or ""


@app.command("show")
@client
def show_run(api: Api, output: Output, run_id: RunId) -> None:
    """Show one run. For a workflow's run that has not ended, show the open steps, too."""
    run = api.run(run_id)
    if run.get("target") != "workflows" or run["status"] in _ENDED:
        output.record(run)
        return
    steps = _open_steps(api.events(run_id))
    shown = steps if output.as_json else "; ".join(map(_line_of_step, steps))
    output.record({**run, "open_steps": shown})
