"""LangGraph's AG-UI adapter with a graph that asks before it deletes: POST /delete, /delete_std.

`ask` interrupts; `act` runs the tool (env TOOL_LOG) if the answer is a yes. The answer to a message
that does not begin with `delete` repeats the thread's messages, so that a test sees whether two
runs share a thread. /delete_std sends its interrupts in the outcome of RUN_FINISHED; /delete sends
them in a CUSTOM event, which is the adapter's default.
"""
import json, os, socket
from typing import Annotated, Any
from typing_extensions import TypedDict

import uvicorn
from fastapi import FastAPI
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint

SCHEMA = {'type': 'object', 'properties': {'approved': {'type': 'boolean'}}}

class State(TypedDict, total=False):
    messages: Annotated[list[BaseMessage], add_messages]
    answer: Any

def said(state):
    return [str(m.content) for m in state['messages'] if m.type == 'human']

def ask(state):
    if not said(state)[-1].startswith('delete'):
        return {'messages': [AIMessage(content='I know: ' + ' | '.join(str(m.content) for m in state['messages']))]}
    return {'answer': interrupt({'reason': 'confirmation', 'message': f'{said(state)[-1]}?', 'responseSchema': SCHEMA})}

def act(state):
    answer, path = state.get('answer'), said(state)[-1].split()[-1]
    if answer is None:
        return {}
    if answer is False or (isinstance(answer, dict) and not answer.get('approved')):
        return {'messages': [AIMessage(content='Not deleted.')], 'answer': None}
    if log := os.environ.get('TOOL_LOG'):
        with open(log, 'a') as file:
            file.write(json.dumps({'tool': 'delete_file', 'args': {'path': path}}) + '\n')
    return {'messages': [AIMessage(content=f'Deleted {path}.')], 'answer': None}

def build():
    graph = StateGraph(State)
    graph.add_node('ask', ask); graph.add_node('act', act)
    graph.add_edge(START, 'ask'); graph.add_edge('ask', 'act'); graph.add_edge('act', END)
    return graph.compile(checkpointer=MemorySaver())

app = FastAPI()
add_langgraph_fastapi_endpoint(app, LangGraphAgent(name='delete', graph=build()), '/delete')
add_langgraph_fastapi_endpoint(
    app,
    LangGraphAgent(
        name='delete_std', graph=build(), emit_raw_events=False, emit_interrupt_outcome=True,
        enable_legacy_on_interrupt_event=False,
    ),
    '/delete_std',
)

if __name__ == '__main__':
    sock = socket.create_server(('127.0.0.1', 0))
    print('Uvicorn running on http://127.0.0.1:%d' % sock.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level='warning')).run(sockets=[sock])
