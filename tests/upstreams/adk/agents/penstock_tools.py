import asyncio
import functools
import json
import os
import time
import penstock_payments
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.genai import types


def get_weather(city: str) -> dict:
    """Weather of a city."""
    return {'city': city, 'temp_c': 21, 'sky': 'clear'}


def explode(reason: str) -> dict:
    """Always raises."""
    raise ValueError(f'tool exploded: {reason}')


def _trace(text):
    path = os.environ.get('SLOW_TOOL_LOG')  # optional: proves whether a disconnect cancels the tool
    if path:
        with open(path, 'a') as f:
            f.write(f'{time.time()} {text}\n')


async def slow_tool(seconds: float) -> dict:
    """Sleeps."""
    _trace(f'start {seconds}')
    try:
        await asyncio.sleep(seconds)
    except BaseException as e:
        _trace(type(e).__name__)
        raise
    _trace(f'end {seconds}')
    return {'slept': seconds}


def start_export(dataset: str, tool_context: ToolContext) -> dict:
    """Starts a long export."""
    return {'status': 'pending', 'ticket': 'exp-001', 'dataset': dataset}


def ran(tool, tool_context, **args):
    """Log a line for each run of a tool that needed approval, or has an effect: tests count them by session."""
    path = os.environ.get('TOOL_LOG')
    if path:
        with open(path, 'a') as log:
            log.write(json.dumps({'tool': tool, 'args': args, 'session': tool_context.session.id,
                                  'key': getattr(tool_context, 'custom_metadata', {}).get('idempotency_key')}) + '\n')


def delete_file(path: str, tool_context: ToolContext) -> dict:
    """Deletes a file (needs approval)."""
    ran('delete_file', tool_context, path=path)
    return {'deleted': path}


def wire_money(amount: int, to: str, tool_context: ToolContext) -> dict:
    """Wires money; asks for approval with a custom payload."""
    c = tool_context.tool_confirmation
    if not c:
        tool_context.request_confirmation(hint=f'Approve wiring {amount} to {to}?', payload={'approved_amount': 0})
        return {'status': 'waiting for approval'}
    if not c.confirmed:
        return {'status': 'denied'}
    ran('wire_money', tool_context, amount=amount, to=to)
    return {'status': 'wired', 'amount': (c.payload or {}).get('approved_amount', amount), 'to': to}


def set_state(key: str, value: str, tool_context: ToolContext) -> dict:
    """Writes session, user, app and temp state."""
    tool_context.state[key] = value
    tool_context.state['user:' + key] = value
    tool_context.state['app:' + key] = value
    tool_context.state['temp:' + key] = value
    return {'ok': True}


async def save_report(name: str, text: str, tool_context: ToolContext) -> dict:
    """Saves an artifact."""
    v = await tool_context.save_artifact(name, types.Part(inline_data=types.Blob(mime_type='text/plain', data=text.encode())))
    return {'saved': name, 'version': v}


def need_auth(what: str, tool_context: ToolContext) -> dict:
    """Asks for an OAuth2 credential."""
    from fastapi.openapi.models import OAuth2, OAuthFlowAuthorizationCode, OAuthFlows
    from google.adk.auth import AuthConfig, AuthCredential, AuthCredentialTypes, OAuth2Auth
    cfg = AuthConfig(
        auth_scheme=OAuth2(flows=OAuthFlows(authorizationCode=OAuthFlowAuthorizationCode(
            authorizationUrl='https://idp.example/auth', tokenUrl='https://idp.example/token', scopes={'cal': 'calendar'}))),
        raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.OAUTH2,
                                           oauth2=OAuth2Auth(client_id='cid', client_secret='not-a-real-secret')))
    got = tool_context.get_auth_response(cfg)
    if not got:
        tool_context.request_credential(cfg)
        return {'pending': True}
    return {'authorized': True}


@functools.wraps(penstock_payments.send_money)
def send_money(to: str, amount: int, tool_context: ToolContext) -> dict:
    ran('send_money', tool_context, to=to)
    return penstock_payments.send_money(to, amount, tool_context)


def all_tools():
    t = [get_weather, explode, slow_tool, LongRunningFunctionTool(start_export),
         FunctionTool(delete_file, require_confirmation=True), wire_money, set_state, save_report, need_auth,
         send_money]
    try:
        from google.adk.tools import request_input
        t.append(request_input)
    except Exception:
        pass
    return t
