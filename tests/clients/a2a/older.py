"""The official A2A client for Python of 0.3, unchanged: it gets a text, is asked, decides, leaves
and subscribes again, cancels. Prints a line for each. Runs in an environment of its own."""

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import DataPart, Message, Part, Role, TaskIdParams, TaskQueryParams, TextPart


def message(part, **fields):
    return Message(message_id=uuid.uuid4().hex, role=Role.user, parts=[Part(root=part)], **fields)


def text_of(task):
    return "".join(part.root.text for each in task.artifacts or () for part in each.parts)


async def last(stream):
    async for task, _ in stream:
        found = task
    return found


async def first(stream):
    async for task, _ in stream:
        return task


async def main(url, word):
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, f"{url}/0.3").get_agent_card()

        def client(*, streaming=True):
            config = ClientConfig(httpx_client=http, streaming=streaming)
            return ClientFactory(config).create(card)

        for streaming in (True, False):
            asked = message(TextPart(text="tools"))
            task = await last(client(streaming=streaming).send_message(asked))
            again = await client().get_task(TaskQueryParams(id=task.id))
            print(task.status.state.value, text_of(task) == text_of(again) != "")

        task = await last(client().send_message(message(TextPart(text=f"confirm {word}"))))
        asked = task.status.message.parts[1].root.data["data"]
        print(task.status.state.value)
        answer = {**{key: asked[key] for key in ("approval_id", "digest")}, "decision": "approve"}
        names = {"task_id": task.id, "context_id": task.context_id}
        task = await last(client().send_message(message(DataPart(data=answer), **names)))
        print(task.status.state.value)

        task = await first(client().send_message(message(TextPart(text="long"))))
        task = await last(client().resubscribe(TaskIdParams(id=task.id)))
        again = await client().get_task(TaskQueryParams(id=task.id))
        print(task.status.state.value, text_of(task) == text_of(again) != "")

        task = await first(client().send_message(message(TextPart(text="slow"))))
        print((await client().cancel_task(TaskIdParams(id=task.id))).status.state.value)


asyncio.run(main(*sys.argv[1:]))
