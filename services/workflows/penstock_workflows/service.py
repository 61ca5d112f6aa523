"""The workflows service carries out the runs of workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from penstock import telemetry
from penstock.bus import Consumer, Stored, streams, subjects
from penstock.bus.admin.permissions import WORKFLOW_COMMANDS
from penstock.bus.subjects import WORKFLOWS
from penstock.off_loop import OFF_LOOP
from penstock.runs.start import Starter
from penstock.service import Consumption, Context, Service, routes_on_bus
from penstock.settings import Settings
from penstock.web.operation import operations_of
from penstock_workflows.api.definitions import Definitions
from penstock_workflows.api.starts import Starts as StartRoute
from penstock_workflows.effects.children import Children
from penstock_workflows.effects.frames import Frames
from penstock_workflows.effects.listens import DURABLE as LISTENS
from penstock_workflows.effects.listens import TIDY_S, Listens
from penstock_workflows.effects.perform import Performer
from penstock_workflows.effects.timers import DUE, Timers
from penstock_workflows.inputs.decisions import Decisions
from penstock_workflows.inputs.message_handler import CONCERNS, MessageHandler
from penstock_workflows.inputs.starts import Starts
from penstock_workflows.journal.journal import Journals
from penstock_workflows.journal.memory import Runs
from penstock_workflows.registry import WorkflowStore, apply_files
from penstock_workflows.settings import WorkflowsSettings

# The most inputs of one kind that may wait for their turn in the thread, besides those under way.
MAX_OFF_LOOP: Final = 2000
COUNT_S: Final = 10.0  # seconds between two counts of the waiting inputs


class WorkflowsService(Service):
    """Carries out the runs of workflows."""

    name: ClassVar[str] = WORKFLOWS
    settings_type: ClassVar[type[Settings]] = WorkflowsSettings
    operations = operations_of(Definitions, StartRoute)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, WorkflowsSettings)
        self._settings = settings = context.settings
        self._runs = Runs(settings.runs_in_memory)
        journals = Journals(self.bus)
        self._starter = starter = Starter(self.bus, context.config, settings)
        self._timers = timers = Timers(
            self.bus,
            settings.journal_kept_s,
            self._handle_short_timer,
            settings.inputs_at_once,
        )
        children = Children(self.bus, context.config, starter)
        self._listens = Listens(self.bus, settings.input_ack_wait_s)
        performer = Performer(self.bus, children, timers, self._listens)
        decisions = Decisions(
            self.bus,
            journals,
            self._runs,
            Frames(self.bus, context.pod),
            performer,
            settings.steps_per_run,
        )
        self._store = WorkflowStore(
            self.bus, settings.workflows_per_user, tenant_limits=settings.auth.tenant_limits
        )
        surfaces = (
            Definitions(self._store, context.config),
            StartRoute(self.bus, starter, settings.start_max_bytes),
        )
        self.routes = routes_on_bus(*surfaces)
        self._message_handler = MessageHandler(
            self.bus,
            Starts(self.bus, context.config, journals, starter),
            decisions,
            journals,
            timers,
            self._listens,
            starter,
        )
        self._inputs: list[Consumption] = []
        telemetry.WORKFLOWS_IN_MEMORY.set_function(lambda: len(self._runs))
        self._stop_forgetting = self.bus.on_reconnect(self._runs.forget)

    async def start(self) -> None:
        if self._settings.workflows is not None:
            await apply_files(self._settings.workflows, self._store, self.context.config)
        handler = self._message_handler
        for kind in WORKFLOW_COMMANDS:
            if kind != "replay":
                command = self._consumer(
                    stream=streams.COMMANDS,
                    durable=f"workflows-{kind}",
                    subjects=(subjects.command(WORKFLOWS, kind, "*"),),
                )
                give_up = self._give_up_start if kind == "start" else self._give_up_input
                self._inputs.append(self.consume(command, handler.command, give_up=give_up))
        due = self._consumer(stream=streams.SCHEDULES, durable=self.name, subjects=(DUE,))
        events = self._consumer(stream=streams.EVENTS, durable=self.name, subjects=CONCERNS)
        listens = self._consumer(
            stream=streams.EVENTS, durable=LISTENS, make=self._listens.update_consumers
        )
        self._inputs += [
            self.consume(due, handler.due, give_up=self._give_up_input),
            self.consume(events, handler.event, give_up=self._give_up_input),
            self.consume(listens, handler.awaited_event),
        ]
        self.consume_replays(handler.replay)
        self.repeat("listens", TIDY_S, self._listens.remove_unused_types)
        self.repeat("waiting inputs", COUNT_S, self._count_waiting)
        self.spawn("starts", self._starter.follow)

    async def drain(self, grace_s: float) -> None:
        await self.stop_consuming()
        await self._timers.drain()

    async def stop(self) -> None:
        await self._timers.stop()
        await super().stop()
        self._stop_forgetting()

    def _consumer(
        self,
        *,
        stream: str,
        durable: str,
        subjects: tuple[str, ...] = (),
        make: Callable[[], Awaitable[None]] | None = None,
    ) -> Consumer:
        return Consumer(
            stream=stream,
            durable=durable,
            subjects=subjects,
            make=make,
            ack_wait_s=self._settings.input_ack_wait_s,
            at_once=self._settings.inputs_at_once + MAX_OFF_LOOP,
            room=self._room,
        )

    def _room(self) -> int:
        """Return how many inputs of one kind may be under way.

        Inputs that wait for their turn in the thread are not counted. Otherwise one user's long
        decisions would take all places, and another user's input would wait for them.
        """
        return self._settings.inputs_at_once + OFF_LOOP.waiting

    async def _give_up_start(self, stored: Stored, error: Exception) -> None:
        await self.give_up(stored, error)
        await self._message_handler.refuse(stored, error)

    async def _give_up_input(self, stored: Stored, error: Exception) -> None:
        await self.give_up(stored, error)
        await self._message_handler.fail(stored, error)

    async def _handle_short_timer(self, run_id: str, timer: str) -> bool:
        return await self._message_handler.short_timer(run_id, timer)

    async def _count_waiting(self) -> None:
        waiting = [await each.count_waiting() for each in self._inputs]
        telemetry.WORKFLOW_INPUTS_WAITING.set(sum(waiting))
