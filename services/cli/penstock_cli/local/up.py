"""Run `penstock up`, which means every service in one process, with an embedded NATS server."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import SettingsError

from penstock.bus import Bus, BusError
from penstock.bus.admin import subscribers
from penstock.bus.admin.permissions import OPERATOR, SUBSCRIBER
from penstock.bus.state.leases import end_all
from penstock.service import (
    Service,
    bus_settings,
    open_content_keys,
    serve,
    stop_on_signals,
)
from penstock.settings import (
    AgentConfig,
    Config,
    ConfigurationError,
    Settings,
    explained,
    load_config,
)
from penstock.telemetry import configure_logging
from penstock.web.auth import AuthConfig
from penstock.web.server import BindRefused
from penstock_approvals.service import ApprovalsService
from penstock_automations.service import AutomationsService
from penstock_cli.demo import RECIPES, DemoServer, switch_on_workflows
from penstock_cli.demo.automations import ASK, DemoRules, are_wanted, forget
from penstock_cli.demo.connector import DemoConnector
from penstock_cli.demo.first_runs import start_first_runs
from penstock_cli.local.child import StartFailed
from penstock_cli.local.embedded_nats import SYNC_ALWAYS, EmbeddedNats, as_embedded, credentials
from penstock_cli.terminal.output import command
from penstock_client import DEFAULT_URL
from penstock_connector.checks import check_all
from penstock_connector.service import ConnectorService
from penstock_console.service import ConsoleService
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from penstock_workflows.service import WorkflowsService

log = logging.getLogger(__name__)

# The services in the order in which they start. A service that reads messages starts before the
# services that write these messages.
SERVICES: list[type[Service]] = [
    NormalizerService,
    ApprovalsService,
    AutomationsService,
    WorkflowsService,
    ConnectorService,
    EdgeService,
    ConsoleService,
]
OPEN_TO_ALL = "ALLOW_UNAUTHENTICATED_SSE"
DEMO_FLAGS = ("ENABLE_ADK_CANONICAL_STREAM", OPEN_TO_ALL)
KEYS = ("PENSTOCK_AUTH_JWT_SECRET", "PENSTOCK_AUTH_JWKS_URL", "PENSTOCK_OIDC_ISSUER")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line. An option that is None leaves the setting to the environment
    or the default."""

    data: Path
    config: Path | None = None
    host: str | None = None
    port: int | None = None
    probe_port: int | None = None
    nats: str | None = None
    nats_sync: str = SYNC_ALWAYS
    nats_port: int | None = None
    demo: bool = False


def up(options: Options) -> int:
    """Run until SIGTERM or SIGINT. Return 0 after a drain, 2 after a failed start, and 1 after any
    other failure."""
    failures: list[str] = []
    ready = asyncio.Event()
    try:
        if options.demo:
            _switch_on_the_demo()
        settings = _settings(options)
        # One-time links and sign-ins need an address that people can open.
        os.environ.setdefault("PENSTOCK_PUBLIC_URL", url_of(settings))
        settings = _settings(options)
        configure_logging(settings.log_level, settings.log_format)
        agents = _agents(options, settings)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(options, settings, agents, ready))
    except* (ConfigurationError, BusError, BindRefused, StartFailed) as group:
        failures += [str(error) for error in _leaves(group)]
    except* (ValidationError, SettingsError) as group:  # the options or the agents are wrong
        failures += ["; ".join(explained(error, Settings)) for error in _leaves(group)]
    for failure in failures:
        print(f"penstock: {failure}", file=sys.stderr)
    if failures:
        return 1 if ready.is_set() else 2
    return 0


def url_of(settings: Settings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _switch_on_the_demo() -> None:
    """Set the flags that the examples in the contracts need. Authentication that is configured
    stays on."""
    for flag in DEMO_FLAGS:
        if flag != OPEN_TO_ALL or not any(map(os.environ.get, KEYS)):
            os.environ.setdefault(flag, "true")


async def _run(
    options: Options, settings: Settings, agents: list[AgentConfig], ready: asyncio.Event
) -> None:
    until = stop_on_signals()
    # at the end, the services stop first, then NATS, then the demo
    async with AsyncExitStack() as stack:
        demos = [DemoServer(recipe) for recipe in RECIPES] if options.demo else []
        for demo in demos:
            stack.push_async_callback(demo.stop)
            await demo.start(options.data)
        own = options.nats is None
        # The demo's rules are only made on the embedded NATS server. On any other server, the rules
        # would remain after the demo has ended.
        rules = DemoRules(options.data) if options.demo and own and are_wanted() else None
        if rules is not None:
            stack.push_async_callback(rules.stop)
            await rules.start()
        workflows = switch_on_workflows() if options.demo else []
        of_servers = [agent for demo in demos for agent in demo.agents]
        config = Config(agents=agents + of_servers + workflows)
        nats = None
        if own:
            nats = EmbeddedNats(options.data, options.nats_sync, options.nats_port, settings.shards)
            stack.push_async_callback(nats.stop)
            await nats.start()
            settings = await open_content_keys(settings)
            settings = as_embedded(settings, nats.url, options.data)
            await _prepare(settings, forget_demo=rules is None)
        async with asyncio.TaskGroup() as group:
            greeting = _show_addresses(
                options, settings, demos, rules, ready, nats, bool(workflows)
            )
            helpers = [group.create_task(greeting), group.create_task(_warn(agents, ready))]
            if nats is not None:
                helpers.append(group.create_task(nats.keep()))
            alone = nats is not None
            # In the demo, a person may kill the connector, so it has a process of its own.
            kept = options.demo and nats is not None
            services = [
                DemoConnector if kept and each is ConnectorService else each for each in SERVICES
            ]
            await serve(
                services,
                settings,
                config,
                until=until,
                on_ready=ready.set,
                alone=alone,
                has_options=True,
            )
            for helper in helpers:
                helper.cancel()


async def _prepare(settings: Settings, *, forget_demo: bool) -> None:
    """Make the streams, and end the leases of an earlier process. The NATS user is the operator.

    The users of the services have no permission to make streams. This process has the lock on the
    data folder. So every process that held a lease has ended, and the leases can be ended.
    """
    # No service runs yet, so this connection repairs streams that have lost their end.
    wanted = bus_settings(settings, f"penstock-up-{os.getpid()}", OPERATOR, repairs=True)
    bus = await Bus.connect(wanted)
    try:
        await subscribers.ensure(bus)
        if forget_demo:
            await forget(bus)
        try:
            await end_all(bus)
        except BusError as error:
            log.warning("the leases of the earlier process expire later: %s", error)
    finally:
        await bus.close()


async def _show_addresses(
    options: Options,
    settings: Settings,
    demos: list[DemoServer],
    rules: DemoRules | None,
    ready: asyncio.Event,
    nats: EmbeddedNats | None,
    has_workflows: bool,
) -> None:
    await ready.wait()
    missing = [demo for demo in demos if demo.is_being_set_up]
    for demo in demos:
        if demo not in missing:
            await demo.healthy()
    url = url_of(settings)
    print(f"\nPenstock is at {url}. Ctrl-C stops it; what ran is kept in {options.data}.")
    if nats is not None:
        print(
            f"Events on NATS: {nats.url}, user {SUBSCRIBER} (it may only read), "
            f"password in {credentials(options.data) / SUBSCRIBER}"
        )
    asks = AuthConfig(**settings.auth.model_dump()).requires_credentials
    if asks:
        print(f"\nCallers are asked who they are. {_how_to_get_a_token(settings)}")
    if demos:
        bearer = ' -H "Authorization: Bearer $PENSTOCK_TOKEN"' * asks
        print(
            "\nTry, in another terminal:\n",
            command(url, "run", "What is the weather in Paris?", "--agent", "assistant"),
            command(url, "run", "Please delete report.txt", "--agent", "vana"),
            *[command(url, "run", "+password = 1", "--agent", "code_review")] * has_workflows,
            f"curl -N {url}/api/service/v1/executions/trigger -H 'Content-Type: application/json'"
            f"{bearer} -d '{_DIAGNOSIS}'\n",
            sep="\n  ",
        )
    if rules is not None:
        print(
            "A rule sends a signed webhook for each run that completes; its receiver prints it "
            "here.\nAnother rule starts a run for a request to its hook:\n\n "
            f" curl {url}/v1/hooks/{ASK} -H 'Content-Type: application/json' "
            f'-H "Authorization: Bearer $(cat {shlex.quote(str(rules.token_file))})" '
            '-d \'{"city": "Oslo"}\'\n'
        )
    for demo in missing:
        print(f"The demo's {demo.recipe.name} server is still being set up: {_names(demo)}.")
    sys.stdout.flush()
    await asyncio.gather(*map(_tell_when_healthy, missing))
    if demos and nats is not None and not asks:
        agents = {agent.id for demo in demos for agent in demo.agents}
        await start_first_runs(url, agents | {"code_review"} if has_workflows else agents)


async def _tell_when_healthy(demo: DemoServer) -> None:
    try:
        await demo.healthy()
    except StartFailed as error:  # the rest is of use without this server
        print(f"penstock: {error}", file=sys.stderr, flush=True)
    else:
        print(f"The demo's {demo.recipe.name} server is there: {_names(demo)}.", flush=True)


def _names(demo: DemoServer) -> str:
    return ", ".join(agent.id for agent in demo.agents)


async def _warn(agents: list[AgentConfig], ready: asyncio.Event) -> None:
    """Log which agents of the file cannot work as configured. The services start without waiting
    for these checks."""
    try:
        findings = await check_all(Config(agents=agents).server_agents)
    except Exception:  # these checks only warn, so their failure must not stop Penstock
        log.exception("the agents' servers could not be checked")
        return
    await ready.wait()  # so that the warnings are the last lines of the output at the start
    for finding in findings:
        if not finding.is_fine:
            log.warning("agent %s: %s", finding.agent, finding.text)


def _how_to_get_a_token(settings: Settings) -> str:
    if settings.auth.jwt_secret is None:
        return "Set PENSTOCK_TOKEN to a token of your issuer, for the commands below."
    return (
        "A token for the commands below, where PENSTOCK_AUTH_JWT_SECRET is set:\n\n"
        f"  export PENSTOCK_TOKEN=$({command(DEFAULT_URL, 'token')})"
    )


_DIAGNOSIS = '{"topologyId": 123, "userMessage": "Analyze system state and health status."}'


def _settings(options: Options) -> Settings:
    options_set: dict[str, Any] = {
        "config": options.config,
        "host": options.host,
        "port": options.port,
        "probe_port": options.probe_port,
        "nats_url": options.nats,
        "nats_wait_s": 0.0,  # do not wait for NATS, because a person waits for the result
    }
    return Settings(**{name: value for name, value in options_set.items() if value is not None})


def _agents(options: Options, settings: Settings) -> list[AgentConfig]:
    if options.demo and options.config is None:
        return []
    if options.config is None and not settings.config.exists():
        raise ConfigurationError(
            f"there is no {settings.config} here: name your agents' file with --config, "
            "or try it with --demo"
        )
    return load_config(settings.config).agents


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
        "uvloop"
    ).new_event_loop
    return factory


E = TypeVar("E", bound=Exception)


def _leaves(group: ExceptionGroup[E]) -> Iterator[E]:
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
