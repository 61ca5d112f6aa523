"""Real AgentOS with fake-model agents. Env: AGNO_DB (sqlite path), TOOL_LOG (which tools ran)."""
import asyncio, functools, json, os
from dataclasses import dataclass
from typing import Optional
import importlib.metadata as md

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.exceptions import RetryAgentRun, StopAgentRun
from agno.os import AgentOS
from agno.run import RunContext
from agno.run.agent import CustomEvent
from agno.team import Team
from agno.tools import tool
from agno.workflow import Step, Workflow
from agno.workflow.types import StepInput, StepOutput
from agno.workflow.parallel import Parallel
from agno.workflow.loop import Loop
from agno.workflow.condition import Condition
from agno.workflow.router import Router

from fakemodel import FakeModel
from payments import send_money

VER = md.version("agno")
V3 = VER.startswith("3.")
db = SqliteDb(db_file=os.environ.get("AGNO_DB", "agno.db"))

def ran(tool: str, run_context: Optional[RunContext], **args) -> None:
    """Log a line for each run of a tool that needed approval, or has an effect; tests count them. Env: TOOL_LOG."""
    path = os.environ.get("TOOL_LOG")
    if path:
        with open(path, "a") as log:
            key = ((run_context and run_context.metadata) or {}).get("idempotency_key")
            log.write(json.dumps({"tool": tool, "args": args, "session": run_context and run_context.session_id, "key": key}) + "\n")

def list_documents() -> dict:
    """List documents."""
    return {"success": True, "result": {"count": 2, "documents": [{"id": "d-1", "title": "It's \"A\""}, {"id": "d-2", "title": None}]}}
def json_tool(q: str) -> str:
    """JSON string."""
    return json.dumps({"q": q, "ok": True, "none": None})
def list_tool() -> list:
    """A list."""
    return [1, "two", None, True]
def add(a: int, b: int) -> int:
    """Add."""
    return a + b
def bad_tool(x: int) -> str:
    """Raises."""
    raise ValueError(f"bad tool blew up: x={x}")
def retry_tool() -> str:
    """Retry."""
    raise RetryAgentRun("please try again with something else")
def stop_tool() -> str:
    """Stop."""
    raise StopAgentRun("stop now", agent_message="Stopping.")
async def slow_tool(seconds: float) -> str:
    """Sleeps."""
    await asyncio.sleep(seconds)
    return f"slept {seconds}"

@dataclass
class ProgressEvent(CustomEvent):
    event: str = "CustomEvent"
    step: Optional[int] = None
    note: Optional[str] = None

async def custom_tool(n: int):
    """Yields custom events."""
    for i in range(n):
        yield ProgressEvent(step=i, note=f"part {i}")
    yield "custom tool finished"

@tool(requires_confirmation=True)
def create_document(run_context: RunContext, title: str) -> dict:
    """Create a document."""
    ran("create_document", run_context, title=title)
    return {"success": True, "result": {"id": "doc-123", "title": title}}
@tool(requires_confirmation=True)
def delete_document(run_context: RunContext, doc_id: str) -> str:
    """Delete a document."""
    ran("delete_document", run_context, doc_id=doc_id)
    return f"deleted {doc_id}"
@tool(requires_confirmation=True)
def confirm_bad(run_context: RunContext, x: int) -> str:
    """Confirm then raise."""
    ran("confirm_bad", run_context, x=x)
    raise ValueError("confirmed tool blew up")
@tool(requires_user_input=True, user_input_fields=["to_address"])
def send_email(subject: str, body: str, to_address: str) -> str:
    """Send an email.

    Args:
        subject (str): subject
        body (str): body
        to_address (str): recipient
    """
    ran("send_email", None,  # 2.3 would ask the user for a run_context
        subject=subject, to_address=to_address)
    return f"sent {subject!r} to {to_address}"
@tool(external_execution=True)
def run_shell(command: str) -> str:
    """Run shell externally."""
    return "never called"

ctl = [create_document, delete_document, confirm_bad, send_email, run_shell]
@functools.wraps(send_money)
def logged_send_money(run_context: RunContext, to: str, amount: int) -> str:
    ran("send_money", run_context, to=to)
    return send_money(run_context, to, amount)

plain = [list_documents, json_tool, list_tool, add, bad_tool, retry_tool, stop_tool, slow_tool, custom_tool, logged_send_money]
extra = []
try:
    from agno.tools.user_control_flow import UserControlFlowTools
    extra.append(UserControlFlowTools())
except Exception as e: print("no UserControlFlowTools", e)
try:
    from agno.tools.user_feedback import UserFeedbackTools
    extra.append(UserFeedbackTools())
except Exception as e: print("no UserFeedbackTools", e)
try:
    from agno.approval import approval
    @approval(type="required")
    @tool(requires_confirmation=True)
    def admin_delete(run_context: RunContext, doc_id: str) -> str:
        """Admin-approved delete."""
        ran("admin_delete", run_context, doc_id=doc_id)
        return f"admin deleted {doc_id}"
    @approval(type="audit")
    @tool(requires_confirmation=True)
    def audited_delete(run_context: RunContext, doc_id: str) -> str:
        """Audited delete."""
        ran("audited_delete", run_context, doc_id=doc_id)
        return f"audited deleted {doc_id}"
    extra += [admin_delete, audited_delete]
except Exception as e: print("no approval", e)

def mk(id, name, tools, **kw):
    return Agent(id=id, name=name, model=FakeModel(), db=db, tools=tools, telemetry=False, **kw)

demo = mk("demo-agent", "Demo Agent", plain + ctl + extra)
stored = mk("stored-agent", "Stored Agent (store_events)", plain + ctl, store_events=True)
from agno.tools.reasoning import ReasoningTools
think = mk("think-agent", "Think Agent", [ReasoningTools()] + plain)
def pre(run_input): return None
def post(run_output): return None
hooks = mk("hooks-agent", "Hooks Agent", plain, pre_hooks=[pre], post_hooks=[post])
def guard(run_input):
    from agno.exceptions import InputCheckError, CheckTrigger
    raise InputCheckError("blocked by guardrail", check_trigger=CheckTrigger.INPUT_NOT_ALLOWED)
guarded = mk("guard-agent", "Guard Agent", [], pre_hooks=[guard])
memory = mk("memory-agent", "Memory Agent", [], enable_session_summaries=True)
from pydantic import BaseModel as _BM
class Movie(_BM):
    title: str
    year: int
schema_agent = mk("schema-agent", "Schema Agent", [], output_schema=Movie)
outmodel = mk("outmodel-agent", "Output Model Agent", plain, output_model=FakeModel(id="fake-out"))
try:
    usermem = mk("usermem-agent", "User Memory Agent", [], **({"update_memory_on_run": True} if V3 else {"enable_user_memories": True}))
except TypeError:
    usermem = mk("usermem-agent", "User Memory Agent", [], enable_user_memories=True)
more = [schema_agent, outmodel, usermem]
if V3:
    try: more.append(mk("followups-agent", "Followups Agent", [], followups=True))
    except Exception as e: print("no followups", repr(e))
nodb = Agent(id="nodb-agent", name="No DB", model=FakeModel(), tools=ctl, telemetry=False)

researcher = mk("researcher", "Researcher", plain + ctl, role="research")
writer = mk("writer", "Writer", plain, role="write")
team = Team(id="demo-team", name="Demo Team", model=FakeModel(), members=[researcher, writer], db=db, tools=[create_document, list_documents], telemetry=False, stream_member_events=True)

wf_agent = mk("wf-agent", "WF Agent", plain + ctl)
def fn_step(step_input: StepInput) -> StepOutput:
    return StepOutput(content=f"fn saw: {str(step_input.previous_step_content)[:60]}")
def fn_bad(step_input: StepInput) -> StepOutput:
    raise ValueError("function step failed")
simple_wf = Workflow(id="simple-wf", name="Simple WF", db=db, telemetry=False, steps=[Step(name="answer", agent=wf_agent), Step(name="post", executor=fn_step)])
complex_wf = Workflow(id="complex-wf", name="Complex WF", db=db, telemetry=False, steps=[
    Parallel(Step(name="p1", executor=fn_step), Step(name="p2", executor=fn_step), name="par"),
    Condition(name="cond", evaluator=lambda si: True, steps=[Step(name="c1", executor=fn_step)]),
    Loop(name="loop", steps=[Step(name="l1", executor=fn_step)], max_iterations=2),
    Router(name="route", selector=lambda si: [Step(name="r1", executor=fn_step)], choices=[Step(name="r1", executor=fn_step), Step(name="r2", executor=fn_step)]),
])
fail_wf = Workflow(id="fail-wf", name="Fail WF", db=db, telemetry=False, steps=[Step(name="bad", executor=fn_bad, **({} if V3 else {"max_retries": 0}))])
wfs = [simple_wf, complex_wf, fail_wf]
if V3:
    try:
        from agno.workflow.types import HumanReview
        wfs.append(Workflow(id="hitl-wf", name="HITL WF", db=db, telemetry=False, steps=[
            Step(name="first", executor=fn_step),
            Step(name="gate", executor=fn_step, human_review=HumanReview(requires_confirmation=True, confirmation_message="Run the gate?")),
            Step(name="last", executor=fn_step)]))
        wfs.append(Workflow(id="input-wf", name="Input WF", db=db, telemetry=False, steps=[
            Step(name="ask", executor=fn_step, human_review=HumanReview(requires_user_input=True, user_input_message="Who?", user_input_schema=[{"name": "who", "field_type": "str", "description": "name", "required": True}]))]))
        wfs.append(Workflow(id="team-wf", name="Team WF", db=db, telemetry=False, steps=[Step(name="answer", team=team)]))
        wfs.append(Workflow(id="route-wf", name="Route WF", db=db, telemetry=False, steps=[
            Router(name="route", choices=[Step(name="r1", executor=fn_step), Step(name="r2", executor=fn_step)],
                   human_review=HumanReview(requires_user_input=True, user_input_message="Which way?"))]))
        wfs.append(Workflow(id="review-wf", name="Review WF", db=db, telemetry=False, steps=[
            Step(name="draft", executor=fn_step, human_review=HumanReview(requires_output_review=True, output_review_message="Is it good?")),
            Step(name="last", executor=fn_step)]))
    except Exception as e: print("no workflow HITL", repr(e))

kw = {"db": db} if V3 else {}
if V3 and os.environ.get("AGNO_QUEUE"):
    from agno.job_queue.config import QueueConfig
    from agno.job_queue.store import InMemoryQueueStore; kw["queue"] = QueueConfig(durable=True, db=InMemoryQueueStore())
if V3 and os.environ.get("AGNO_AUTH"):
    from agno.os.config import AuthorizationConfig
    kw["authorization"] = True
    kw["authorization_config"] = AuthorizationConfig(verification_keys=[os.environ["AGNO_AUTH"]], algorithm="HS256")
agent_os = AgentOS(id="fake-os", name="Fake OS", agents=[demo, stored, think, hooks, guarded, memory, nodb, researcher, writer] + more, teams=[team], workflows=wfs, telemetry=False, **kw)
app = agent_os.get_app()
