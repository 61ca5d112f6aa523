"""pydantic-ai's AG-UI adapter with scripted models: POST /{scenario}. Env: TOOL_LOG (which tools ran)."""
import asyncio, json, os
from typing import AsyncIterator
from fastapi import FastAPI, Request
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelRequest, ToolReturn, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.ui import StateDeps
from pydantic_ai.ui.ag_ui import AGUIAdapter
from ag_ui.core import CustomEvent, EventType, StateDeltaEvent, StateSnapshotEvent

app = FastAPI()

class Doc(BaseModel):
    count: int = 0
    items: list[str] = []

def ran(tool: str, **args) -> None:
    """Log a line for each run of a tool that needed approval; tests count them. Env: TOOL_LOG."""
    path = os.environ.get('TOOL_LOG')
    if path:
        with open(path, 'a') as log:
            log.write(json.dumps({'tool': tool, 'args': args}) + '\n')

def prompts(messages) -> list[str]:
    return [str(p.content) for m in messages if isinstance(m, ModelRequest) for p in m.parts if isinstance(p, UserPromptPart)]

def has_return(messages, n=1):
    return sum(isinstance(p, ToolReturnPart) for m in messages if isinstance(m, ModelRequest) for p in m.parts) >= n

async def s_text(messages, info: AgentInfo) -> AsyncIterator:
    for w in ['Hello', ' from', ' a', ' pydantic-ai', ' AG-UI', ' stream', ' – ünïcode ✓']:
        yield w

async def s_tool(messages, info):
    if has_return(messages):
        for w in ['It is ', '21 °C', ' in Berlin.']: yield w
    else:
        yield 'Let me check. '
        yield {0: DeltaToolCall(name='get_weather', tool_call_id='call_w1')}
        for c in ['{"ci', 'ty": "Ber', 'lin"}']: yield {0: DeltaToolCall(json_args=c)}

async def s_parallel(messages, info):
    if has_return(messages, 2):
        yield 'Both done.'
    else:
        yield {0: DeltaToolCall(name='get_weather', json_args='{"city": "Berlin"}', tool_call_id='call_a')}
        yield {1: DeltaToolCall(name='get_weather', json_args='{"city": "Paris"}', tool_call_id='call_b')}

async def s_reason(messages, info):
    yield {0: DeltaThinkingPart(content='First, ')}
    yield {0: DeltaThinkingPart(content='think.')}
    yield {0: DeltaThinkingPart(signature='sig-abc')}
    yield 'The answer is 42.'

async def s_state(messages, info):
    if has_return(messages):
        yield 'State updated.'
    else:
        yield {0: DeltaToolCall(name='bump', json_args='{"n": 2}', tool_call_id='call_s1')}

async def s_approval(messages, info):
    if has_return(messages):
        last = [p for m in messages if isinstance(m, ModelRequest) for p in m.parts if isinstance(p, ToolReturnPart)][-1]
        yield f'Result: {last.content}'
    else:
        path = prompts(messages)[-1].split()[-1]
        yield {0: DeltaToolCall(name='delete_file', json_args=json.dumps({'path': path}), tool_call_id='call_d1')}

async def s_front(messages, info):
    if has_return(messages):
        yield 'Thanks, frontend.'
    else:
        yield {0: DeltaToolCall(name='pick_color', json_args='{}', tool_call_id='call_f1')}

async def s_error(messages, info):
    yield 'partial '
    raise RuntimeError('model backend exploded')

async def s_slow(messages, info):
    for i in range(100):
        yield f'tok{i} '
        await asyncio.sleep(0.1)

async def s_runaway(messages, info):
    """Call a tool for ever, until the prompt says that the agent may go on."""
    if 'go on' in prompts(messages)[-1]:
        yield 'That is enough.'
        return
    await asyncio.sleep(0.3)
    yield {0: DeltaToolCall(name='get_weather', json_args='{"city": "Berlin"}', tool_call_id=f'call_r{len(messages)}')}

async def s_recall(messages, info):
    """Answer with the user prompts that the server was sent."""
    yield ' | '.join(prompts(messages))

def mk(fn, **kw):
    a = Agent(FunctionModel(stream_function=fn), deps_type=StateDeps[Doc], **kw)
    return a

agents = {k: mk(f) for k, f in dict(text=s_text, tool=s_tool, parallel=s_parallel, reasoning=s_reason, state=s_state, frontend=s_front, error=s_error, slow=s_slow, recall=s_recall, runaway=s_runaway).items()}
agents['approval'] = mk(s_approval, output_type=[str, DeferredToolRequests])
agents['frontend'] = mk(s_front, output_type=[str, DeferredToolRequests])

for k in ('tool', 'parallel', 'runaway'):
    @agents[k].tool_plain
    async def get_weather(city: str) -> str:
        return f'21 °C in {city}'

@agents['state'].tool
async def bump(ctx: RunContext[StateDeps[Doc]], n: int) -> ToolReturn:
    ctx.deps.state.count += n
    ctx.deps.state.items.append(f'x{n}')
    return ToolReturn(return_value='ok', metadata=[
        StateSnapshotEvent(type=EventType.STATE_SNAPSHOT, snapshot={'count': 0, 'items': []}),
        StateDeltaEvent(type=EventType.STATE_DELTA, delta=[{'op': 'replace', 'path': '/count', 'value': n}, {'op': 'add', 'path': '/items/-', 'value': f'x{n}'}]),
        CustomEvent(type=EventType.CUSTOM, name='progress', value={'pct': 50}),
    ])

@agents['approval'].tool_plain(requires_approval=True)
async def delete_file(path: str) -> str:
    ran('delete_file', path=path)
    return f'deleted {path}'

@app.post('/{scenario}')
async def run(scenario: str, request: Request):
    kw = {}
    if request.headers.get('x-ag-ui-version'): kw['ag_ui_version'] = request.headers['x-ag-ui-version']
    if request.headers.get('x-usage'): kw['include_usage'] = True
    return await AGUIAdapter.dispatch_request(request, agent=agents[scenario], deps=StateDeps(Doc()), **kw)
