"""Read the Deployments of a rendered chart: probes, grace, order of a rollout, environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

COMPONENT: Final = "app.kubernetes.io/component"
# The variables that name things of the cluster; a process on this machine gets its own.
_OF_THE_CLUSTER: Final = ("PENSTOCK_HOST", "PENSTOCK_NATS_", "PENSTOCK_AUTH_")

# The field with the least number of pods, of objects that scale Deployments.
_LEAST: Final = {"HorizontalPodAutoscaler": "minReplicas", "ScaledObject": "minReplicaCount"}


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe by HTTP, with Kubernetes' defaults for the fields that the chart leaves out."""

    path: str
    period_s: float = 10.0
    timeout_s: float = 1.0
    failures: int = 3  # so many failures in a row count
    successes: int = 1


@dataclass(frozen=True, slots=True)
class Template:
    """What the chart says about each pod of a Deployment."""

    startup: Probe
    live: Probe
    ready: Probe
    grace_s: float
    environment: Mapping[str, str]
    pre_stop: tuple[str, ...] = ()  # a command that runs before SIGTERM
    serves: bool = False  # whether it has the port `http`
    memory_bytes: int = 0  # its limit


@dataclass(frozen=True, slots=True)
class Deployment:
    """A Deployment of the chart. `service` is its component, such as `edge`."""

    service: str
    replicas: int
    max_surge: int
    max_unavailable: int
    min_ready_s: float
    template: Template


@dataclass(frozen=True, slots=True)
class Job:
    """The hook that runs before an installation and an upgrade."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    hooks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """The parts of a rendering that decide how pods come and go."""

    deployments: tuple[Deployment, ...]
    job: Job


def read(objects: Iterable[dict[str, Any]]) -> Chart:
    """Return the Deployments and the Job of a rendering."""
    found = list(objects)
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]: int(each["spec"][_LEAST[each["kind"]]])
        for each in found
        if each["kind"] in _LEAST
    }
    (job,) = (_job(each) for each in found if each["kind"] == "Job")
    return Chart(
        tuple(_deployment(each, scaled) for each in found if each["kind"] == "Deployment"), job
    )


def _deployment(found: dict[str, Any], scaled: Mapping[str, int]) -> Deployment:
    spec = found["spec"]
    assert spec["strategy"]["type"] == "RollingUpdate"
    rolling = spec["strategy"]["rollingUpdate"]
    return Deployment(
        found["metadata"]["labels"][COMPONENT],
        spec.get("replicas") or scaled[found["metadata"]["name"]],
        int(rolling["maxSurge"]),
        int(rolling["maxUnavailable"]),
        float(spec["minReadySeconds"]),
        _template(spec["template"]["spec"]),
    )


def _template(spec: dict[str, Any]) -> Template:
    (container,) = spec["containers"]
    pre_stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ())
    return Template(
        startup=_probe(container["startupProbe"]),
        live=_probe(container["livenessProbe"]),
        ready=_probe(container["readinessProbe"]),
        grace_s=float(spec["terminationGracePeriodSeconds"]),
        environment=_environment(container),
        pre_stop=tuple(pre_stop),
        serves=any(port["name"] == "http" for port in container["ports"]),
        memory_bytes=_bytes(container["resources"]["limits"]["memory"]),
    )


def _probe(found: dict[str, Any]) -> Probe:
    names = {
        "periodSeconds": "period_s",
        "timeoutSeconds": "timeout_s",
        "failureThreshold": "failures",
        "successThreshold": "successes",
    }
    assert found["httpGet"]["port"] == "probes"
    given = {names[key]: value for key, value in found.items() if key != "httpGet"}
    return Probe(found["httpGet"]["path"], **given)


def _environment(container: dict[str, Any]) -> dict[str, str]:
    return {
        each["name"]: each["value"]
        for each in container.get("env", ())
        if "value" in each and not each["name"].startswith(_OF_THE_CLUSTER)
    }


def _job(found: dict[str, Any]) -> Job:
    (container,) = found["spec"]["template"]["spec"]["containers"]
    hooks = found["metadata"]["annotations"]["helm.sh/hook"].split(",")
    return Job(tuple(container["args"]), _environment(container), tuple(hooks))


def _bytes(quantity: str) -> int:
    units = {"Mi": 2**20, "Gi": 2**30}
    return int(quantity[:-2]) * units[quantity[-2:]]
