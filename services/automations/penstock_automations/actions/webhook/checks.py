"""Answers the normalizer's core requests `check.<run>`: has a server of the operator's check texts.

A check is one attempt of a call, with the same guard, secrets and limits of owners, and without a
record: the normalizer stores what comes back. It is made past an open breaker, since a check that
is not made stops its run, and it opens no breaker of the calls to the same server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import Final

import orjson
from pydantic import ValidationError

from penstock.bus import Bus, BusError, Msg
from penstock.bus.records.webhooks import CheckReply, CheckRequest
from penstock.runs.calls import CALLS, CallJob
from penstock.turns import TenantUser
from penstock_automations.actions.executor import AttemptDeferred, Occurrence
from penstock_automations.actions.webhook.executor import WebhookExecutor
from penstock_automations.jobs.job import CALL_TYPE, CallSource, Job
from penstock_automations.rules.calls import CallRefused, CallSecret, rule_of_call

log = logging.getLogger(__name__)

# How many checks of one user's runs this process makes at once.
AT_ONCE: Final = 32
CHECKS: Final = "_check"  # in place of a rule's id: checks share their limits with no calls


class Checks:
    """Makes the requests to checkers."""

    def __init__(
        self, bus: Bus, webhooks: WebhookExecutor, secrets: Mapping[str, CallSecret]
    ) -> None:
        self._bus = bus
        self._webhooks = webhooks
        self._secrets = secrets
        self._tasks: set[asyncio.Task[None]] = set()
        # By the bytes of a request that is being answered: to whom its answer goes.
        self._askers: dict[bytes, list[str]] = {}

    async def on_request(self, msg: Msg) -> None:
        """Answer in a task of its own: a slow checker must not delay the checks of other runs. The
        normalizer asks again while it has no answer, and the checker gets the texts once."""
        if (askers := self._askers.get(msg.data)) is not None:
            askers.append(msg.reply)
            return
        self._askers[msg.data] = [msg.reply]
        task = asyncio.create_task(self._answer(msg))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, msg: Msg) -> None:
        """If the bus fails, send no answer. The normalizer asks again."""
        run_id = msg.subject.partition(".")[2]
        try:
            asked = CheckRequest.model_validate_json(msg.data)
            call = _call_of(run_id, asked, msg.data)
            user = TenantUser(asked.tenant, asked.user_id)
            async with asyncio.timeout(asked.timeout_s):
                reply = await self._checked(call, user)
        except ValidationError as error:
            reply = CheckReply(error=f"the request cannot be made: {error.errors()[0]['msg']}")
        except CallRefused as refused:
            reply = CheckReply(error=str(refused))
        except asyncio.CancelledError:
            # The normalizer asks another process, instead of waiting until the check has failed.
            reply = CheckReply(error="the process is ending")
        except TimeoutError:
            reply = CheckReply(error=f"no complete answer within {asked.timeout_s:g} s")
        except BusError as error:
            log.warning("run %s: no answer to a check: %s", run_id, error)
            return
        finally:
            askers = self._askers.pop(msg.data)
        try:
            for each in askers:
                await self._bus.client.publish(each, reply.dump())
        except BusError as error:
            log.warning("run %s: the answer to a check is lost: %s", run_id, error)

    async def _checked(self, call: CallJob, user: TenantUser) -> CheckReply:
        rule = rule_of_call(call, self._secrets, user, CHECKS)
        webhook = rule.record.rule.action.webhook
        assert webhook is not None, "a call sends a webhook"
        webhook.concurrency = AT_ONCE
        source = CallSource(call)
        job = Job(CALLS, 1, CALLS, CALL_TYPE, source, is_asked_for=True, dotted=False)
        async with self._webhooks.reserve_capacity(rule, job) as put_off:
            result = put_off or await self._webhooks.attempt(rule, job, Occurrence(b"{}"), None)
        if isinstance(result, AttemptDeferred):
            return CheckReply(error=f"no request is made now ({result.waits_for})")
        if result.verdict.outcome != "delivered":
            return CheckReply(error=result.verdict.text)
        try:
            return CheckReply(answer=orjson.loads(result.whole_answer or "{}"))
        except ValueError:
            return CheckReply(error="its answer is no JSON, or has more than 64 KiB")


def _call_of(run_id: str, asked: CheckRequest, request: bytes) -> CallJob:
    digest = hashlib.sha256(request).hexdigest()[:16]
    return CallJob(
        run_id=run_id,
        step_id="",
        call_id=f"check-{digest}",
        workflow="redactions",
        url=asked.url,
        body=asked.body,
        secret=asked.secret,
        timeout_s=max(1.0, asked.timeout_s),
    )
