"""A small OpenAI-like streaming server: the model's name selects the script."""
import asyncio, json
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

app = FastAPI()

def ch(model, delta, fin=None):
    choice = {"index": 0, "delta": delta, "finish_reason": fin}
    return 'data: ' + json.dumps({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}) + '\n\n'

def call(model, index, id, name, args):
    head = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
    yield ch(model, {"tool_calls": [head]})
    for i in range(0, len(args), 5):
        yield ch(model, {"tool_calls": [{"index": index, "function": {"arguments": args[i:i+5]}}]})

@app.post('/v1/chat/completions')
async def cc(req: Request):
    b = await req.json(); m = b['model']; msgs = b['messages']
    tools = [t['function']['name'] for t in b.get('tools') or []]
    if m == 'error': return JSONResponse({"error": {"message": "boom from upstream", "type": "server_error"}}, 400)
    answered = msgs[-1]['role'] == 'tool'
    said = [str(x['content']) for x in msgs if x['role'] == 'user']
    async def gen():
        if m in ('tool', 'parallel', 'approval', 'frontend', 'state') and not answered:
            weather = ['{"city":"Berlin"}', '{"city":"Paris"}']
            args = {'tool': weather[:1], 'parallel': weather, 'frontend': ['{}'], 'state': ['{"n":2}'],
                    'approval': [json.dumps({"path": said[-1].split()[-1]})]}[m]
            yield ch(m, {"role": "assistant", "content": "Let me check. "})
            for i, arg in enumerate(args):
                for each in call(m, i, f"call_{m}_{i}" if i else f"call_{m}", tools[0], arg): yield each
            yield ch(m, {}, 'tool_calls')
        elif m == 'runaway' and 'go on' not in said[-1]:  # for ever
            await asyncio.sleep(0.3)
            for each in call(m, 0, f"call_r{len(msgs)}", tools[0], '{"city":"Berlin"}'): yield each
            yield ch(m, {}, 'tool_calls')
        elif m == 'reasoning':
            yield ch(m, {"role": "assistant", "reasoning_content": "First, think. "}); yield ch(m, {"reasoning_content": "Then answer."})
            yield ch(m, {"content": "42."}); yield ch(m, {}, 'stop')
        elif m == 'slow':
            for i in range(100):
                yield ch(m, {"content": f"tok{i} "}); await asyncio.sleep(0.1)
            yield ch(m, {}, 'stop')
        else:
            for w in ['Hello', ' from', ' agno', ' ✓']: yield ch(m, {"content": w})
            yield ch(m, {}, 'stop')
        yield 'data: [DONE]\n\n'
    return StreamingResponse(gen(), media_type='text/event-stream')
