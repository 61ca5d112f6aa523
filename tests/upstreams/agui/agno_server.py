"""Agno's AG-UI interface with a scripted model, in one process: POST /{scenario}/agui. Env: TOOL_LOG."""
import json, os, socket

sock = socket.create_server(("127.0.0.1", 0))
URL = "http://127.0.0.1:%d" % sock.getsockname()[1]

import uvicorn
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai.like import OpenAILike
from agno.os import AgentOS
from agno.os.interfaces.agui import AGUI
from agno.run import RunContext
from agno.tools import tool

import scripted_openai

@tool
def get_weather(city: str) -> str:
    "weather"
    return f'21 C in {city}'

@tool(requires_confirmation=True)
def delete_file(path: str) -> str:
    "delete"
    if log := os.environ.get('TOOL_LOG'):
        with open(log, 'a') as file:
            file.write(json.dumps({'tool': 'delete_file', 'args': {'path': path}}) + '\n')
    return f'deleted {path}'

@tool
def bump(run_context: RunContext, n: int) -> str:
    "bump"
    run_context.session_state['count'] = run_context.session_state.get('count', 0) + n
    return 'ok'

tools = dict(tool=[get_weather], approval=[delete_file], state=[bump])
names = ('text', 'tool', 'parallel', 'approval', 'frontend', 'state', 'reasoning', 'error', 'slow', 'runaway')
tools['parallel'] = tools['runaway'] = tools['tool']
agents = {
    s: Agent(
        id=s, name=s, db=InMemoryDb(), tools=tools.get(s), telemetry=False,
        model=OpenAILike(id=s, api_key='x', base_url=URL + '/model/v1'),
    )
    for s in names
}
app = AgentOS(
    agents=list(agents.values()),
    interfaces=[AGUI(agent=a, prefix='/' + s) for s, a in agents.items()],
    telemetry=False,
).get_app()
app.mount('/model', scripted_openai.app)

if __name__ == '__main__':
    # the socket already accepts connections, and answers follow in a moment
    print('Uvicorn running on', URL, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level='warning')).run(sockets=[sock])
