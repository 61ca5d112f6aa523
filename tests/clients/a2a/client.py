"""The official A2A client for Python, unchanged, as a process: each line of the input is a call,
and each line of the output what the client has then. Runs in an environment of its own."""

import asyncio
import itertools
import json
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.server.tasks.task_manager import append_artifact_to_task
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf.json_format import MessageToDict, ParseDict

REQUESTS = {
    "send_message": SendMessageRequest,
    "subscribe": SubscribeToTaskRequest,
    "get_task": GetTaskRequest,
    "list_tasks": ListTasksRequest,
    "cancel_task": CancelTaskRequest,
    "create_task_push_notification_config": TaskPushNotificationConfig,
    "get_task_push_notification_config": GetTaskPushNotificationConfigRequest,
    "list_task_push_notification_configs": ListTaskPushNotificationConfigsRequest,
    "delete_task_push_notification_config": DeleteTaskPushNotificationConfigRequest,
}
ENDED = (
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
)


def fold(task, response):
    """Fold a response into the task, with the SDK's own function for artifacts."""
    if response.HasField("task"):
        task.CopyFrom(response.task)
    elif response.HasField("artifact_update"):
        append_artifact_to_task(task, response.artifact_update)
    elif response.HasField("status_update"):
        update = response.status_update
        if task.status.HasField("message"):
            task.history.append(task.status.message)
        task.metadata.update(update.metadata)
        task.status.CopyFrom(update.status)


async def client_of(http, call):
    card = await A2ACardResolver(http, call["url"]).get_agent_card()
    kept = [
        each
        for each in card.supported_interfaces
        if (each.protocol_binding, each.protocol_version) == (call["binding"], call["version"])
    ]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)
    config = ClientConfig(
        httpx_client=http, supported_protocol_bindings=[call["binding"]], streaming=call["stream"]
    )
    return ClientFactory(config).create(card)


async def follow(http, call):
    """Send a message, and follow its task to the end. Whenever the stream breaks or the server is
    gone, go on at the next of `urls`: subscribe, or get the task if it has ended. Return the task,
    and how often it broke."""
    context = ClientCallContext(service_parameters=call["headers"])
    task, message = Task(), ParseDict(call["request"], SendMessageRequest())
    for breaks, url in enumerate(itertools.cycle(call["urls"])):
        try:
            client = await client_of(http, {**call, "url": url})
            if task.id:
                stream = client.subscribe(SubscribeToTaskRequest(id=task.id), context=context)
            else:
                stream = client.send_message(message, context=context)
            async for response in stream:
                fold(task, response)
        except UnsupportedOperationError:
            task = await client.get_task(GetTaskRequest(id=task.id), context=context)
        except (A2AClientError, httpx.HTTPError) as error:
            print(f"{url}: {error!r}", file=sys.stderr)
            await asyncio.sleep(0.1)
        if task.status.state in ENDED:
            return {"task": MessageToDict(task), "breaks": breaks}


async def carry_out(http, call):
    """Return the task as the client has it. With `cut`, the client leaves after so many frames, and
    subscribes again with `again`."""
    if call["method"] == "follow":
        return await follow(http, call)
    client = await client_of(http, call)
    context = ClientCallContext(service_parameters=call["headers"])
    request = ParseDict(call["request"], REQUESTS[call["method"]]())
    answer = getattr(client, call["method"])(request, context=context)
    if call["method"] not in ("send_message", "subscribe"):
        told = await answer
        return MessageToDict(told) if told is not None else {}
    task, frames = Task(), 0
    async for response in answer:
        fold(task, response)
        frames += 1
        if frames == call.get("cut"):
            break
    if frames == call.get("cut") and call.get("again"):
        request = SubscribeToTaskRequest(id=task.id)
        async for response in client.subscribe(request, context=context):
            fold(task, response)
    return MessageToDict(task)


async def main():
    async with httpx.AsyncClient(timeout=60) as http:
        loop, tasks = asyncio.get_running_loop(), set()

        async def run(call):
            try:
                told = await carry_out(http, call)
            except Exception as error:
                told = {"raised": type(error).__name__, "text": str(error)}
            print(json.dumps({"number": call["number"], "told": told}), flush=True)

        while line := await loop.run_in_executor(None, sys.stdin.readline):
            tasks.add(asyncio.create_task(run(json.loads(line))))
        await asyncio.gather(*tasks)


asyncio.run(main())
