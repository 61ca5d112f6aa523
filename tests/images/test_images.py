"""The images are built, and their processes start, serve runs and end, without a Docker daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from helm import charts
from images.buildah import Image, Running, missing, python_image
from penstock.bus.admin.permissions import OPERATOR
from support.drive.repository import ROOT, services
from support.drive.waiting import wait_for
from support.fakes.collector import collector
from support.fakes.issuer import SECRET, token
from support.real.nats import NatsServer, password_of
from support.real.ports import free_port

pytestmark = [pytest.mark.images, pytest.mark.timeout(1800)]

SERVICES = sorted(set(services()) - {"cli"})
DEMOS = ["demo-adk", "demo-agno"]
ALICE = {"authorization": f"Bearer {token(sub='alice', scope='start read decide automate')}"}
QUESTION = {"message": "What is the weather in Paris?", "agent": "assistant"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    if reason := missing():
        pytest.skip(f"images are not built: {reason}")
    return python_image(tmp_path_factory.mktemp("debian"))


@pytest.fixture(scope="module")
def images(base: str) -> Iterator[dict[str, Image]]:
    """Build every image."""
    with ExitStack() as stack:
        built = {}
        for target in [*SERVICES, "penstock", *DEMOS]:
            built[target] = Image.build(target, base)
            stack.callback(built[target].remove)
        yield built


@pytest.fixture(scope="module")
def agents(images: dict[str, Image], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the demo's agent servers from their images; return the configuration that names them."""
    folder = tmp_path_factory.mktemp("agents")
    with ExitStack() as stack:
        ports = []
        for target in DEMOS:
            ports.append(free_port())
            command = [*images[target].config["Cmd"][:-1], str(ports[-1])]
            server = Running(images[target], folder, command=command)
            stack.callback(server.kill)
            server.url = f"http://127.0.0.1:{ports[-1]}"
            server.ready("/list-apps" if target == "demo-adk" else "/health")
        text = (ROOT / "deploy/compose/penstock.yaml").read_text()
        for target, port, known in zip(DEMOS, ports, (7778, 7777), strict=True):
            text = text.replace(f"{target}:{known}", f"127.0.0.1:{port}")
        yield text


def of_the_chart(kind: str, component: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment that the chart gives to a container.

    Values of Secrets are those of the tests.
    """
    [pod] = [
        each["spec"] if kind == "Pod" else each["spec"]["template"]["spec"]
        for each in charts.committed("default")
        if each["kind"] == kind
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    [container] = pod["containers"]
    given = {each["name"]: each.get("value", SECRET) for each in container["env"]}
    return container.get("command") or container.get("args") or [], given


@contextmanager
def deployed(
    images: dict[str, Image],
    agents: str,
    folder: Path,
    further: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[dict[str, Running]]:
    """Run every service from its image, with the chart's environment and its own NATS user.

    `further` has further variables of services.
    """
    nats = NatsServer(folder)
    nats.start()
    here = {"PENSTOCK_NATS_URL": nats.url, "PENSTOCK_HOST": "127.0.0.1"}

    def password(user: str) -> dict[str, Path]:
        own = folder / f"password-of-{user}"
        own.mkdir()
        (own / user).write_text(password_of(user))
        return {"/etc/penstock-nats": own}

    with ExitStack() as stack:
        stack.callback(nats.stop)
        command, given = of_the_chart("Job", "streams")
        streams = Running(
            images["penstock"],
            folder,
            command=command,
            environment=given | here,
            mounts=password(OPERATOR),
        )
        assert streams.wait() == 0, streams.log()
        running = {}
        for name in SERVICES:
            _, given = of_the_chart("Deployment", name)
            environment = given | here | dict((further or {}).get(name, {}))
            running[name] = Running(
                images[name], folder, agents, environment=environment, mounts=password(name)
            )
            stack.callback(running[name].kill)
        for process in running.values():
            process.ready()
        yield running


@pytest.fixture(scope="module")
def deployment(
    images: dict[str, Image], agents: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Running]]:
    with deployed(images, agents, tmp_path_factory.mktemp("services")) as running:
        yield running


def run(url: str, **request: str) -> list[str]:
    """Start a run, and return the types of its events until it ends or pauses."""
    with httpx.Client(base_url=url, timeout=60, headers=ALICE) as client:
        started = client.post("/v1/runs", json=request)
        assert started.status_code in (200, 201, 202), started.text
        path = f"/v1/runs/{started.json()['run_id']}/events"
        kinds = []
        with client.stream("GET", path) as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kinds.append(line.removeprefix("event: "))
                    if kinds[-1] in ("lifecycle.completed", "lifecycle.failed", "lifecycle.paused"):
                        break
        return kinds


@pytest.mark.parametrize("agent", ["assistant", "vana"])
def test_the_services_serve_a_run_from_their_images(
    deployment: dict[str, Running], agent: str
) -> None:
    kinds = run(deployment["edge"].url, **{**QUESTION, "agent": agent})
    assert kinds[0] == "lifecycle.started"
    assert kinds[-1] == "lifecycle.completed"


def test_an_approval_is_decided_at_its_own_image(deployment: dict[str, Running]) -> None:
    kinds = run(deployment["edge"].url, message="Please delete report.txt", agent="assistant")
    assert kinds[-1] == "lifecycle.paused"
    url = f"{deployment['approvals'].url}/v1/approvals"
    waiting = httpx.get(url, headers=ALICE).json()
    assert "delete_file" in json.dumps(waiting)


@pytest.mark.parametrize(
    ("service", "path"),
    [("automations", "/v1/automations"), ("workflows", "/v1/workflows"), ("console", "/docs")],
)
def test_a_service_answers_at_its_own_image(
    deployment: dict[str, Running], service: str, path: str
) -> None:
    assert httpx.get(f"{deployment[service].url}{path}", headers=ALICE).status_code == 200


def test_the_test_of_the_chart_runs_from_its_image(
    images: dict[str, Image], deployment: dict[str, Running], tmp_path: Path
) -> None:
    command, given = of_the_chart("Pod", "test")
    here = {"PENSTOCK_URL": deployment["edge"].url}
    trial = Running(images["penstock"], tmp_path, command=command, environment=given | here)
    assert trial.wait() == 0, trial.log()
    assert "completed" in trial.log()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_runs_without_rights(deployment: dict[str, Running], service: str) -> None:
    assert deployment[service].user() == 10001
    assert httpx.get(f"{deployment[service].probes}/livez").status_code == 200


@pytest.mark.parametrize("target", [*SERVICES, "penstock"])
def test_an_image_lists_its_packages(images: dict[str, Image], target: str) -> None:
    locked = set(
        re.findall(r"^([a-z0-9-]+)==", (ROOT / "deploy/requirements.txt").read_text(), re.M)
    )
    own = {"penstock", f"penstock-{target}"} if target != "penstock" else {"penstock"}
    found = images[target].components()
    assert own | locked <= found
    others = {f"penstock-{name}" for name in services()} - own
    assert (others <= found) if target == "penstock" else not others & found


@pytest.mark.parametrize("target", [*SERVICES, "penstock"])
def test_an_image_has_no_installer_and_nothing_that_its_user_may_write(
    images: dict[str, Image], target: str
) -> None:
    environment = images[target].root / "opt/penstock"
    assert not list(environment.glob("lib/*/site-packages/pip*"))
    assert all(path.lstat().st_uid == 0 for path in environment.rglob("*"))


# The last use of `deployment`: it ends the services.
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_ends_with_0_on_sigterm(deployment: dict[str, Running], service: str) -> None:
    assert deployment[service].stop() == 0, deployment[service].log()


REFUSED = {  # requests that are refused, and have a span nevertheless
    "approvals": "/v1/approvals/none/decision",
    "automations": "/v1/automations",
    "workflows": "/v1/workflows/validate",
    "console": "/assets/none",
}


@pytest.mark.parametrize("turn", range(3))
def test_the_images_serve_and_end_with_0_while_their_collectors_are_dead(
    images: dict[str, Image], agents: str, tmp_path: Path, turn: int
) -> None:
    """The collectors are, in turn: a closed port, a port that never answers, and one that refuses.

    After three turns, each image was started with each of them.
    """
    with collector() as silent, collector() as refusing:
        silent.hangs, refusing.status = True, 500
        urls = ["http://127.0.0.1:9", silent.url, refusing.url]
        quick = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        further = {
            name: {**quick, "OTEL_EXPORTER_OTLP_ENDPOINT": urls[(turn + number) % 3]}
            for number, name in enumerate(SERVICES)
        }
        with deployed(images, agents, tmp_path, further) as running:
            for _ in range(2):  # in the second round, the exporters hang or have failed
                assert run(running["edge"].url, **QUESTION)[-1] == "lifecycle.completed"
                for name, path in REFUSED.items():
                    answer = httpx.post(f"{running[name].url}{path}", headers=ALICE, json={})
                    assert answer.is_client_error
                for name, process in running.items():
                    wait_for(partial(has_said, process), 60, f"the warning of {name}")
            for name, process in running.items():
                assert process.stop() == 0, process.log()
                assert process.log().count("spans are lost") == 1, (name, process.log())


def has_said(process: Running) -> bool:
    return "spans are lost" in process.log()


def test_everything_in_one_image_serves_a_run_and_ends_with_0(
    images: dict[str, Image], agents: str, tmp_path: Path
) -> None:
    whole = Running(
        images["penstock"],
        tmp_path,
        agents,
        command=["penstock", "up", "--data", "/var/lib/penstock"],
        environment={"PENSTOCK_AUTH_JWT_SECRET": SECRET},
    )
    try:
        whole.ready()
        assert run(whole.url, **QUESTION)[-1] == "lifecycle.completed"
        assert whole.stop() == 0, whole.log()
    finally:
        whole.kill()
