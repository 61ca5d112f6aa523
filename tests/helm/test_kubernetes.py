"""A real Helm installs the chart into a real API server, which refuses what Kubernetes would.

No controller and no node is there, so no pod runs: tests/images runs what is in the pods.
"""

from __future__ import annotations

import base64
import copy
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helm import charts, crds
from helm.api_server import ApiServer
from helm.charts import CHART, Object
from support.drive.repository import ROOT, services

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]

PROGRAMS = ROOT / ".penstock/kubernetes/bin"
NAMESPACE = "agents"
# NACK's resources are not to be had as a Go module, so an API server does not know them here.
INSTALLED = sorted(set(charts.SETS) - {"nack"})
WHOLE = {
    "everything": ["--set", "monitoring.rules.enabled=true,monitoring.dashboards.enabled=true"]
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the custom resources, and a namespace that takes restricted pods only."""
    for program in ("helm", "etcd", "kube-apiserver"):
        if not (PROGRAMS / program).exists():
            pytest.skip(f"there is no {program}: tests/helm/build.sh builds it with Go")
    server = ApiServer(PROGRAMS, tmp_path_factory.mktemp("kubernetes"))
    try:
        for name in crds.PLACES:
            made = server.make(crds.definition(name))
            assert made.status_code == 201, made.text
            group, version = name.split(".", 1)[1].rsplit(".", 1)
            _until_served(server, f"/apis/{group}/{version}")
        labels = {
            "pod-security.kubernetes.io/enforce": "restricted",
            "pod-security.kubernetes.io/enforce-version": "latest",
        }
        space = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": labels},
        }
        assert server.make(space).status_code == 201
        priority = {  # of `everything`
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "agents"},
            "value": 1,
        }
        assert server.make(priority).status_code == 201
        yield server
    finally:
        server.stop()


def _until_served(server: ApiServer, path: str) -> None:
    deadline = time.monotonic() + 30
    while server.http.get(path).status_code != 200:
        assert time.monotonic() < deadline, f"{path} is not served"
        time.sleep(0.1)


def helm(server: ApiServer | None, *arguments: str, namespace: str = NAMESPACE) -> str:
    """Run Helm; return its output."""
    connection = ["--kubeconfig", str(server.kubeconfig)] if server is not None else []
    done = subprocess.run(
        [PROGRAMS / "helm", *arguments, "--namespace", namespace, *connection],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


@pytest.mark.parametrize("name", charts.SETS)
def test_helm_finds_nothing_wrong(name: str) -> None:
    if not (PROGRAMS / "helm").exists():
        pytest.skip("there is no helm: tests/helm/build.sh builds it with Go")
    given = [*charts.SETS[name], *WHOLE.get(name, [])]
    said = helm(None, "lint", "--strict", str(CHART), "--kube-version", charts.KUBERNETES, *given)
    assert "0 chart(s) failed" in said


@pytest.mark.parametrize("name", crds.PLACES)
def test_the_schemas_of_the_tests_are_those_of_the_other_projects(name: str) -> None:
    assert json.loads((Path(__file__).parent / f"schemas/{name}.json").read_text()) == crds.trimmed(
        name
    )


@pytest.mark.parametrize("name", INSTALLED)
def test_an_api_server_takes_every_object(server: ApiServer, name: str) -> None:
    for each in charts.committed(name):
        made = server.make(each, NAMESPACE, dry=True)
        assert made.status_code == 201, made.text


@pytest.mark.parametrize("name", INSTALLED)
def test_a_restricted_namespace_takes_every_pod(server: ApiServer, name: str) -> None:
    for each in charts.committed(name):
        if each["kind"] in ("Deployment", "Job"):
            template: Object = copy.deepcopy(each["spec"]["template"])
            spec = {**template["spec"], "nodeSelector": {}}
            labels = {"name": "trial", "labels": template["metadata"]["labels"]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": labels, "spec": spec}
            made = server.make(pod, NAMESPACE, dry=True)
            assert made.status_code == 201, made.text
            # and would refuse it with more rights
            spec["containers"][0]["securityContext"] = {"allowPrivilegeEscalation": True}
            assert server.make(pod, NAMESPACE, dry=True).status_code == 403


@pytest.mark.parametrize("name", INSTALLED)
def test_an_installation_is_accepted_by_the_server_without_changing_it(
    server: ApiServer, name: str
) -> None:
    given = [*charts.SETS[name], *WHOLE.get(name, [])]
    helm(server, "install", "trial", str(CHART), "--dry-run=server", *given)


def deployments(server: ApiServer) -> dict[str, Any]:
    found = server.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    return {each["metadata"]["name"]: each["spec"] for each in found}


def keys(server: ApiServer) -> Any:
    return server.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/demo-penstock-keys")["data"]


def test_an_installation_is_upgraded_and_rolled_back(server: ApiServer) -> None:
    # Hooks wait for the end of a Job, which no controller runs here.
    usual, large = charts.SETS["usual"], charts.SETS["large"]
    helm(server, "install", "demo", str(CHART), "--no-hooks", *usual)
    first = deployments(server)
    assert set(first) == {f"demo-penstock-{name}" for name in services() if name != "cli"}
    made = keys(server)
    assert len(base64.b64decode(made["csrf-secret"])) >= 32
    assert first["demo-penstock-connector"]["replicas"] == 2

    # An autoscaler's number of replicas stays over an upgrade.
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/demo-penstock-edge/scale"
    scale = server.get(path)
    scale["spec"]["replicas"] = 5
    assert server.http.put(path, json=scale).status_code == 200

    helm(server, "upgrade", "demo", str(CHART), "--no-hooks", *large)
    second = deployments(server)
    assert keys(server) == made  # or every signed-in browser would have to begin anew
    assert second["demo-penstock-connector"]["replicas"] == 4
    assert second["demo-penstock-edge"]["replicas"] == 5
    shards = {"name": "PENSTOCK_SHARDS", "value": "4"}
    [container] = second["demo-penstock-edge"]["template"]["spec"]["containers"]
    assert shards in container["env"]

    helm(server, "rollback", "demo", "1", "--no-hooks")
    third = deployments(server)
    assert third["demo-penstock-connector"] == first["demo-penstock-connector"]
    assert third["demo-penstock-edge"]["template"] == first["demo-penstock-edge"]["template"]
    history = json.loads(helm(server, "history", "demo", "--output", "json"))
    assert [each["status"] for each in history] == ["superseded", "superseded", "deployed"]

    helm(server, "uninstall", "demo", "--no-hooks")
    assert not deployments(server)
    helm(server, "install", "demo", str(CHART), "--no-hooks", *usual)
    assert keys(server) == made
    helm(server, "uninstall", "demo", "--no-hooks")
