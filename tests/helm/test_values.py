"""Values that a user sets reach every object that they concern."""

from __future__ import annotations

from helm import charts
from helm.renderings import name_of, needs_helm, of_kind, pods
from support.drive.repository import services


@needs_helm
def test_fields_of_the_security_contexts_can_be_left_out() -> None:
    nulls = ["podSecurityContext.runAsUser=null", "containerSecurityContext.runAsUser=null"]
    found = charts.objects(charts.template([*charts.OF_USER, "--set", ",".join(nulls)]))
    [edge] = [each for each in found if name_of(each) == "demo-penstock-edge"][-1:]
    spec = edge["spec"]["template"]["spec"]
    for context in (spec["securityContext"], spec["containers"][0]["securityContext"]):
        assert "runAsUser" not in context
        assert context["runAsNonRoot"] is True


@needs_helm
def test_a_pod_takes_containers_of_the_user_before_and_beside_its_own() -> None:
    more = "edge.sidecars[0].name=proxy,edge.initContainers[0].name=wait"
    found = charts.objects(charts.template([*charts.OF_USER, "--set", more]))
    specs = {
        name_of(each): each["spec"]["template"]["spec"]
        for each in found
        if each["kind"] == "Deployment"
    }
    edge = specs["demo-penstock-edge"]
    assert [each["name"] for each in edge["containers"]] == ["edge", "proxy"]
    assert [each["name"] for each in edge["initContainers"]] == ["wait"]
    assert "initContainers" not in specs["demo-penstock-approvals"]


def test_the_pods_of_jobs_and_tests_run_where_and_as_whom_the_services_do() -> None:
    for rendering, name, spec in pods():
        if rendering == "everything":
            # The Job runs before the installation, so an account of the release is not there.
            account = None if name.endswith("-streams") else "demo-bridge"
            assert spec.get("serviceAccountName") == account, name
            assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}, name
            assert spec["tolerations"] == [{"key": "agents", "operator": "Exists"}], name
            assert spec["priorityClassName"] == "agents", name
            assert spec["imagePullSecrets"] == [{"name": "pull"}], name
        elif rendering == "default":
            assert "serviceAccountName" not in spec


def test_values_of_a_service_change_its_probes_service_and_environment() -> None:
    edge = of_kind("everything", "Deployment")["edge"]
    assert edge["spec"]["revisionHistoryLimit"] == 2
    spec = edge["spec"]["template"]["spec"]
    assert "topologySpreadConstraints" not in spec
    [container] = spec["containers"]
    assert container["readinessProbe"]["periodSeconds"] == 5
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}
    reference = {"configMapKeyRef": {"name": "proxies", "key": "https"}}
    assert {"name": "HTTPS_PROXY", "valueFrom": reference} in container["env"]
    service = of_kind("everything", "Service")["edge"]
    assert service["metadata"]["annotations"] == {"example.org/lb": "yes"}


@needs_helm
def test_a_given_account_is_that_of_every_pod() -> None:
    found = charts.objects(charts.template([*charts.OF_USER, "--set", "serviceAccount.name=own"]))
    specs = [
        each["spec"]["template"]["spec"] for each in found if each["kind"] in ("Deployment", "Job")
    ]
    assert len(specs) == len(services())  # without the command line, and with the Job of streams
    assert {each["serviceAccountName"] for each in specs} == {"own"}
    assert not [each for each in found if each["kind"] == "ServiceAccount"]
