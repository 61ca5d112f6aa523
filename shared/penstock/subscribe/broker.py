"""Runs a FastStream broker with one pull subscriber for each shard, all on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, PullSub

from penstock.bus import Msg, NatsError
from penstock.subscribe.account import Account

POLL_S: Final = 1.0  # Seconds that a request for one event waits at the server.
PAUSE_S: Final = 1.0  # Seconds that a subscriber waits after a failed request.


class EventBroker(NatsBroker):
    """A FastStream broker whose subscribers are added at its start: only NATS knows the shards. The
    broker calls `begin` after it has connected, and `end` before it closes the connection."""

    def __init__(
        self,
        account: Callable[[], Account],
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
        grace_s: float,
        domain: str | None,
    ) -> None:
        # FastStream's logger is switched off, because its lines would contain payloads.
        options: Any = {"domain": domain} if domain else {}
        super().__init__(
            apply_types=False, logger=None, graceful_timeout=grace_s, js_options=options
        )
        self._make_account = account
        self._begin, self._end = begin, end
        self._account: Account | None = None
        self._requests: list[_Requests] = []

    @property
    def account(self) -> Account:
        assert self._account is not None, "the broker has not been started"
        return self._account

    async def _connect(self) -> Any:
        account = self._make_account()
        await account.connect()
        self._account = account
        self.config.connect(account.connection)
        return account.connection

    async def start(self) -> None:
        """Connect, and start a subscriber for each shard. Raises StartUpError if the server refuses
        the user, or a durable is missing. The text says what to do."""
        try:
            await self.connect()
            await super().start()
            await self._begin()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, *error: Any) -> None:
        """Take no more events, finish those that are being handled, and close the connection."""
        await asyncio.gather(*(requests.end() for requests in self._requests))
        self._requests.clear()
        account, self._account = self._account, None
        self._connection = None  # NatsBroker would drain the connection before `end`
        try:
            await super().stop(*error)
            await self._end()
        finally:
            if account is not None:
                await account.close()

    async def follow(
        self, stream: str, durable: str, subject: str, take: Callable[[Msg], Awaitable[None]]
    ) -> None:
        """Call `take` with each message of the durable, one after another.

        Messages are fetched one by one. A request for several would return only when all of them
        have come or its time is over, and delay rare events.
        """
        subscriber = self.subscriber(
            subject,
            stream=JStream(stream, declare=False),
            durable=durable,
            pull_sub=PullSub(batch_size=1, timeout=POLL_S),
            ack_policy=AckPolicy.MANUAL,
            decoder=_undecoded,
            inbox_prefix=f"{self.account.inbox_prefix}.".encode(),
        )
        subscriber(take)
        await subscriber.start()
        # `_Requests` waits after a failed request. FastStream itself repeats a failed request at
        # once. If the durable was deleted, FastStream would use a whole core for these requests.
        requests: Any = _Requests(subscriber.subscription)
        subscriber.subscription = requests
        self._requests.append(requests)


class _Requests:
    """A pull subscription that waits after a failed request, and can be ended between requests."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscription, name)

    async def fetch(self, batch: int, timeout: float) -> Any:
        """Return messages as nats-py's subscription does; after `end`, wait until cancelled."""
        if self._ended:
            await asyncio.Event().wait()  # wait until FastStream cancels this task
        self._idle.clear()
        try:
            return await self._subscription.fetch(batch=batch, timeout=timeout)
        except TimeoutError:
            raise
        except NatsError:
            await asyncio.sleep(PAUSE_S)
            return []
        finally:
            self._idle.set()

    async def end(self) -> None:
        """Make no more requests, and wait for the end of the current one.

        The server would still answer a cancelled request with the next message. Nobody would handle
        it, and the server would deliver it again only after the durable's `ack_wait`.
        """
        self._ended = True
        await self._idle.wait()


def app_of(broker: NatsBroker) -> FastStream:
    return FastStream(broker, logger=None)


async def _undecoded(message: Any, _original: Any = None) -> Any:
    return message.raw_message
