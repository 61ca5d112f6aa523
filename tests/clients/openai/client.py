"""OpenAI's own client for Python, unchanged, as a process: each line of the input is a call, and
each line of the output what the client returned or raised. Runs in an environment of its own."""

import json
import sys

import openai


def stream(client, call):
    """Read a stream. With `cut`, leave it after so many events."""
    events = []
    with client.responses.create(**call["body"], stream=True) as answer:
        for event in answer:
            events.append(event.model_dump(mode="json", warnings=False))
            if len(events) == call.get("cut"):
                break
    return events


def resume(client, call):
    after = {"starting_after": call["after"]} if call.get("after") is not None else {}
    with client.responses.retrieve(call["id"], stream=True, **after) as answer:
        return [event.model_dump(mode="json", warnings=False) for event in answer]


def final(client, call):
    """Return what the client's own accumulator makes of a stream."""
    with client.responses.stream(
        response_id=call["id"], starting_after=call.get("after")
    ) as answer:
        return answer.get_final_response().model_dump(mode="json", warnings=False)


def chat(client, call):
    answer = client.chat.completions.create(**call["body"])
    if not call["body"].get("stream"):
        return answer.model_dump(mode="json", warnings=False)
    return [chunk.model_dump(mode="json", warnings=False) for chunk in answer]


CALLS = {
    "create": lambda client, call: dumped(client.responses.create(**call["body"])),
    "stream": stream,
    "resume": resume,
    "final": final,
    "retrieve": lambda client, call: dumped(client.responses.retrieve(call["id"])),
    "cancel": lambda client, call: dumped(client.responses.cancel(call["id"])),
    "inputs": lambda client, call: [
        dumped(each) for each in client.responses.input_items.list(call["id"])
    ],
    "models": lambda client, call: [each.id for each in client.models.list()],
    "chat": chat,
}


def dumped(answer):
    text = {"output_text": answer.output_text} if hasattr(answer, "output_text") else {}
    return answer.model_dump(mode="json", warnings=False) | text


clients = {}
for line in sys.stdin:
    call = json.loads(line)
    url = f"{call['url']}/openai/v1"
    if url not in clients:
        clients[url] = openai.OpenAI(base_url=url, api_key="none", timeout=60)
    client = clients[url]
    try:
        result = {"ok": CALLS[call["do"]](client, call)}
    except openai.APIStatusError as error:
        result = {"error": error.body, "status": error.status_code, "type": type(error).__name__}
    except Exception as error:
        result = {"error": str(error), "status": None, "type": type(error).__name__}
    print(json.dumps(result), flush=True)
