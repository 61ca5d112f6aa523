"""Collect the facts about a deployment that NATS does not show: over HTTP, and from files."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import orjson

from penstock.bus import Bus, BusError, StartUpError
from penstock.bus.admin.permissions import NAMES, USER_INFO, USERS, User
from penstock.doctor.facts import AnswerFact, Facts
from penstock.service import bus_settings
from penstock.settings import ConfigurationError, ServerAgent, Settings, load_config
from penstock.web.auth import AuthConfig
from penstock.web.auth.jwks import JwksFailure, fetched, usable_keys
from penstock.web.auth.oidc import Discovery
from penstock_cli.operations.doctor import permissions, values

TIMEOUT_S = 5.0
# seconds to wait for an answer; NATS answers at once, or never if the user may not ask
PERMISSIONS_S = 2.0


@dataclass(frozen=True, slots=True)
class Places:
    """The files and URLs to check besides NATS. None or empty: there is nothing to check."""

    config: Path | None = None
    probes: Sequence[str] = ()
    values: Sequence[Path] = ()
    chart: Path | None = None


async def outside_nats(facts: Facts, settings: Settings, places: Places) -> Facts:
    """Return the given facts together with the facts about users, files, agents, probes and values.

    Raises:
        ConfigurationError: a named file cannot be read.
    """
    if settings.nats_passwords is not None:
        files = [_file(settings.nats_passwords / name, name) for name in NAMES]
        facts = replace(facts, files=files)
        if not facts.refusal:
            users, granted = await _users(settings, facts.shards)
            facts = replace(facts, users=users, permissions=granted)
    if places.config is not None:
        facts = replace(facts, agents=await _agents(places.config))
    if places.probes:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
            probes = await asyncio.gather(*(_probe(http, url) for url in places.probes))
        facts = replace(facts, probes=probes)
    auth = AuthConfig(**settings.auth.model_dump())
    if places.values and places.chart is not None:
        said = values.read(places.chart, places.values)
        facts = replace(facts, values=said.wrong, wanted=said.wanted)
        if not auth.is_configured:
            auth = replace(auth, jwks_url=said.jwks_url, oidc_issuer=said.oidc_issuer)
    if auth.is_configured:
        facts = replace(facts, auth=await _auth(auth))
    return facts


async def _auth(config: AuthConfig) -> list[AnswerFact]:
    found = []
    if config.allow_unauthenticated_sse:
        said = "every caller is `anonymous`, whatever token they have"
        found.append(AnswerFact("ALLOW_UNAUTHENTICATED_SSE", False, [said]))
    if config.jwt_secret is not None:
        # the settings already check the secret's length
        found.append(AnswerFact("PENSTOCK_AUTH_JWT_SECRET", True))
    url = config.jwks_url
    async with httpx.AsyncClient(timeout=config.jwks_timeout_s) as http:
        if config.oidc_issuer is not None:
            discovery = Discovery(config.oidc_issuer)
            found.append(await _answer(discovery.url, discovery.provider(http)))
            if found[-1].ok:
                url = url or await discovery.jwks_url(http)
        if url is not None:
            found.append(await _answer(url, _keys(http, url, config.pinned)))
    return found


async def _keys(http: httpx.AsyncClient, url: str, algorithms: Sequence[str]) -> None:
    usable_keys(await fetched(http, url), algorithms)


async def _answer(name: str, asked: Awaitable[object]) -> AnswerFact:
    reasons = []
    try:
        await asked
    except JwksFailure as error:
        reasons.append(str(error))
    return AnswerFact(name, not reasons, reasons)


def _file(path: Path, name: str) -> AnswerFact:
    reasons = []
    try:
        if not path.read_text().strip():
            reasons.append(f"{path} is empty")
        if path.stat().st_mode & stat.S_IROTH:
            reasons.append(f"every user of this machine can read {path}")
    except OSError as error:
        reasons.append(f"{path}: {error.strerror}")
    return AnswerFact(name, not reasons, reasons)


async def _users(settings: Settings, shards: int) -> tuple[list[AnswerFact], list[AnswerFact]]:
    """Log in as the user of every service, and ask NATS for the user's permissions.

    Returns which users can log in, and how these users' permissions differ from the table of
    permissions.
    """
    plain = settings.model_copy(
        update={
            **{"nats_user": None, "nats_password": None, "nats_credentials": None},
            "content_keys": (),
        }
    )
    users, granted = [], []
    for user in USERS:
        try:
            wanted = bus_settings(plain, "penstock-doctor", user.name)
            wanted = replace(wanted, connect_timeout_s=TIMEOUT_S)
            bus = await Bus.connect(wanted, ensure=False)
            try:
                reasons = await _permissions(bus, user, shards)
            finally:
                await bus.close()
            users.append(AnswerFact(user.name, True))
            granted.append(AnswerFact(user.name, not reasons, reasons))
        except (ConfigurationError, StartUpError, BusError) as error:
            users.append(AnswerFact(user.name, False, [str(error)]))
    return users, granted


async def _permissions(bus: Bus, user: User, shards: int) -> list[str]:
    try:
        answer = await bus.request(USER_INFO, b"", PERMISSIONS_S)
    except BusError:
        return [f"may not ask for its permissions ({USER_INFO}), so they are of another version"]
    return permissions.differences(user, shards, orjson.loads(answer.data)["data"])


async def _agents(config: Path) -> list[AnswerFact]:
    from penstock_connector.checks import check_all  # noqa: PLC0415 - only asked for by --config

    agents = [each for each in load_config(config).agents if isinstance(each, ServerAgent)]
    findings = await check_all(agents, TIMEOUT_S)
    return [AnswerFact(each.agent, each.is_fine, [each.text]) for each in findings]


async def _probe(http: httpx.AsyncClient, url: str) -> AnswerFact:
    """Ask /readyz of one service; `url` is the URL of the service's probe port."""
    try:
        answer = await http.get(f"{url.rstrip('/')}/readyz")
        body = answer.json()
        reasons = [f"{name}: {text}" for name, texts in body["services"].items() for text in texts]
        notices, secret = body.get("notices", ()), body.get("csrf_secret")
        return AnswerFact(url, answer.is_success, reasons, notices, secret)
    except httpx.HTTPError as error:
        return AnswerFact(url, False, [f"no answer: {error}"])
    except (ValueError, LookupError, AttributeError, TypeError):
        return AnswerFact(url, False, [f"what answers with {answer.status_code} is no Penstock"])
