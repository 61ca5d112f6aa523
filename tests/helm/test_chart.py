"""The chart makes objects that Kubernetes takes, and that fit the services as they are.

Renderings are committed, so that all but a few of these tests need no Helm.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from opentelemetry.sdk import environment_variables

from helm import charts
from helm.charts import CHART, HERE, Object
from helm.renderings import ALL, environment, name_of, needs_helm, of_kind, pods
from penstock import telemetry
from penstock.bus.admin import nack
from penstock.bus.admin.permissions import NAMES, USERS, password_variable
from penstock.bus.streams import kind_and_shard
from penstock.contract import agents
from penstock.service import Service
from penstock.settings import load_config, read_settings
from support.drive.repository import ROOT, services
from support.drive.short import in_short

SERVICES = set(services()) - {"cli"}
COLLECTOR = [
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}
]
OTHERS = ("keda.sh", "gateway.networking.k8s.io", "monitoring.coreos.com", "jetstream.nats.io")
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def named(each: tuple[str, Object] | str) -> str:
    return each if isinstance(each, str) else f"{each[0]}-{each[1]['kind']}-{name_of(each[1])}"


def service_type(name: str) -> type[Service]:
    module = import_module(f"penstock_{name}.service")
    found: type[Service] = getattr(module, f"{name.capitalize()}Service")
    return found


# Renderings


def test_the_renderings_are_of_the_chart_as_it_is() -> None:
    text = "run `make charts`, which needs Helm (make kubernetes builds it)"
    assert (charts.RENDERED / "digest").read_text().strip() == charts.digest(), text


@needs_helm
@pytest.mark.parametrize("name", charts.SETS)
def test_helm_renders_what_is_committed(name: str) -> None:
    rendered = charts.objects(charts.template(charts.SETS[name]))
    assert charts.compared(rendered) == charts.compared(charts.committed(name))


# Schemas


@pytest.mark.parametrize(
    ("name", "version"),
    in_short(
        [("everything", "1.27"), *((name, "1.37") for name in charts.SETS)],
        [("everything", "1.27"), ("everything", "1.37")],
    ),
)
def test_kubernetes_takes_every_object_of_its_own_kinds(name: str, version: str) -> None:
    own = [each for each in charts.committed(name) if not each["apiVersion"].startswith(OTHERS)]
    assert own
    for each in own:
        kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_would_be_found() -> None:
    wrong = copy.deepcopy(of_kind("default", "Deployment")["edge"])
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_other_projects_take_every_object_of_their_kinds() -> None:
    seen = set()
    for _, each in ALL:
        if not each["apiVersion"].startswith(OTHERS) or each["kind"] == "Stream":
            continue
        group, version = each["apiVersion"].split("/")
        schema = HERE / f"schemas/{each['kind']}.{group}.{version}.json"
        jsonschema.validate(each["spec"], json.loads(schema.read_text()))
        seen.add(each["kind"])
    assert seen == {"ScaledObject", "HTTPRoute", "ServiceMonitor"}


def test_every_object_has_the_labels_and_a_name_of_its_own() -> None:
    for rendering in charts.SETS:
        names = [(each["kind"], name_of(each)) for each in charts.committed(rendering)]
        assert len(set(names)) == len(names)
    for rendering, each in ALL:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "demo"
        assert labels.get("team") == ("agents" if rendering == "everything" else None)


# Values


def test_the_defaults_fit_their_schema_and_the_schema_has_all_of_them() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)


def objects_of(value: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of each object of the values whose names are fixed."""
    free = {"commonLabels", "labels", "annotations", "podAnnotations", "podLabels", "env"}
    free |= {"nodeSelector", "affinity", "digests", "requests", "limits"}
    free |= {"podSecurityContext", "containerSecurityContext"}
    if isinstance(value, dict) and (not path or path[-1] not in free):
        yield path
        for name, each in value.items():
            yield from objects_of(each, *path, name)


@pytest.mark.parametrize("path", list(objects_of(VALUES)), ids=".".join)
def test_the_schema_refuses_an_unknown_name(path: tuple[str, ...]) -> None:
    values = copy.deepcopy(VALUES)
    place = values
    for name in path:
        place = place[name]
    place["replicaCout"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)


@pytest.mark.parametrize("name", sorted({"defaults", *SERVICES}))
def test_each_service_has_all_values_of_a_service(name: str) -> None:
    assert set(VALUES["defaults"]) <= set(SCHEMA["properties"][name]["properties"])


@pytest.mark.parametrize("size", ["small", "usual", "large"])
def test_a_values_file_fits_the_schema_and_says_what_it_is_for(size: str) -> None:
    text = (CHART / f"values/{size}.yaml").read_text()
    assert text.startswith("# ")
    jsonschema.validate(yaml.safe_load(text), SCHEMA)


REFUSED = {
    "nats.url=": "nats.url: set the URL of NATS",
    "nats.existingSecret=": "nats.existingSecret: name the Secret with the passwords",
    "nats.insecure=true": "nats.insecure: remove it",
    "auth.existingSecret=": "auth: set auth.existingSecret, auth.jwksUrl or auth.oidc.issuer",
    "auth.existingSecret=,auth.oidc.issuer=https://issuer.example": "auth.oidc.clientId: set it",
    "auth.existingSecret=,auth.oidc.issuer=https://i,auth.oidc.clientId=x": "auth.oidc: the",
    "auth.jwksUrl=https://issuer.example/keys": "set one of auth.existingSecret and auth.jwksUrl",
    "auth.insecure=true": "auth.insecure: remove it",
    "edge.terminationGracePeriodSeconds=339": "GracePeriodSeconds is 339: it must be 340",
    "edge.drainSeconds=60,edge.terminationGracePeriodSeconds=120": "it must be 340 or more",
    "connector.terminationGracePeriodSeconds=300": "connector.terminationGracePeriodSeconds is 300",
    "edge.replicaCout=2": "additional properties 'replicaCout' not allowed",
    "streams.by=services": "the NATS users of services may not make streams",
    "streams.by=nack,nats.existingSecret=,nats.insecure=true": "nack: set nats.existingSecret",
    "streams.by=nack,streams.shards=2": "streams.shards must be 1",
    "streams.by=both": "streams/by",
    "normalizer.keda.enabled=true,normalizer.keda.maxReplicas=17": "at most 16 have work",
    "normalizer.keda.enabled=true,keda.prometheus=": "keda.prometheus: set the URL",
    "workflows.keda.enabled=true,keda.natsMonitoring=": "keda.natsMonitoring: set host:port",
    "edge.autoscaling.enabled=true,edge.autoscaling.minReplicas=20": "minReplicas is greater",
    "agents[0].url=http://${HOST}": "agents: assistant names a ${VARIABLE} outside of its headers",
    "agents[0].url=": "at '/agents/0/url': '' does not match",
    "agents[0].protocol=openai": "must be one of 'agno', 'adk', 'agui', 'workflow'",
    "agents[0].timeuot_s=3": "'timeuot_s' not allowed",
    "agents[0].protocol=workflow": "additional properties",
    "ingress.enabled=true": "ingress.host: set the host name",
    "httpRoute.enabled=true": "httpRoute.parentRefs: name the Gateway",
}


@needs_helm
@pytest.mark.parametrize("values", REFUSED)
def test_the_chart_refuses_values_that_cannot_work(values: str) -> None:
    agent = ["--set", "agents[0].id=assistant,agents[0].protocol=agno,agents[0].url=http://a"]
    more = agent if values.startswith("agents") else []
    with pytest.raises(charts.Refused) as refused:
        charts.template([*charts.OF_USER, *more, "--set", values])
    assert REFUSED[values] in str(refused.value)


def test_the_schema_of_agents_is_that_of_the_models() -> None:
    text = "run `make contract`"
    assert SCHEMA["properties"]["agents"]["items"] == agents.schema(), text


def test_the_schema_takes_agents_of_every_protocol_and_those_of_the_demo() -> None:
    compose = yaml.safe_load((ROOT / "deploy/compose/penstock.yaml").read_text())["agents"]
    minimal = [{"id": "a", "protocol": name, "url": "http://a"} for name in ("agno", "adk", "agui")]
    workflow = {"id": "trip", "protocol": "workflow", "version": "2"}
    jsonschema.validate({"agents": [*compose, *minimal, workflow]}, SCHEMA)


def test_the_values_of_the_nats_chart_have_a_password_for_every_user() -> None:
    values = yaml.safe_load((CHART.parent / "nats.yaml").read_text())
    keys = {
        variable: value["valueFrom"]["secretKeyRef"]["key"]
        for variable, value in values["container"]["env"].items()
    }
    assert keys == {password_variable(user): user for user in NAMES}


# Pods


def test_every_pod_is_restricted() -> None:
    for rendering, name, spec in pods():
        assert spec["automountServiceAccountToken"] is False, (rendering, name)
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["runAsNonRoot"] is True
            assert security["runAsUser"] == 10001
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "limits" in container["resources"]
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("rendering", ["default", "small", "usual", "large", "everything"])
def test_every_service_has_a_deployment_with_its_own_image(rendering: str) -> None:
    deployments = of_kind(rendering, "Deployment")
    assert set(deployments) == SERVICES
    for name, each in deployments.items():
        [container] = each["spec"]["template"]["spec"]["containers"]
        assert f"penstock-{name}" in container["image"]


def test_all_services_in_one_pod_are_one_deployment_that_is_replaced() -> None:
    [(name, each)] = of_kind("all-in-one", "Deployment").items()
    assert name == "all-in-one"
    assert each["spec"]["replicas"] == 1
    assert each["spec"]["strategy"] == {"type": "Recreate"}
    assert "PENSTOCK_NATS_URL" not in environment(each)  # it would replace the embedded NATS


@pytest.mark.parametrize("rendering", sorted(set(charts.SETS) - {"all-in-one"}))
def test_a_rollout_never_has_fewer_pods_and_waits_for_open_work(rendering: str) -> None:
    for name, each in of_kind(rendering, "Deployment").items():
        assert each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        spec = each["spec"]["template"]["spec"]
        given = environment(each)
        hook = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {})
        before_s = int(hook.get("command", ["sleep", "0"])[1])
        age_s = float(given.get("PENSTOCK_MAX_CONNECTION_AGE_S", 0))
        longest_s = max(float(given["PENSTOCK_DRAIN_S"]), age_s)
        assert spec["terminationGracePeriodSeconds"] >= before_s + longest_s + 30, name


def test_probes_are_on_the_second_port_and_life_does_not_depend_on_nats() -> None:
    for rendering in charts.SETS:
        for each in of_kind(rendering, "Deployment").values():
            [container] = each["spec"]["template"]["spec"]["containers"]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert ports["probes"] == 9000
            paths = {
                probe: container[f"{probe}Probe"]["httpGet"]
                for probe in ("startup", "liveness", "readiness")
            }
            assert paths == {
                "startup": {"path": "/livez", "port": "probes"},
                "liveness": {"path": "/livez", "port": "probes"},
                "readiness": {"path": "/readyz", "port": "probes"},
            }


def deployments_of_services() -> list[tuple[str, str]]:
    return [
        (rendering, name)
        for rendering in sorted(set(charts.SETS) - {"all-in-one"})
        for name in sorted(SERVICES)
    ]


@pytest.mark.parametrize(("rendering", "name"), deployments_of_services())
def test_a_service_reads_every_variable_that_the_chart_sets(
    rendering: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = environment(of_kind(rendering, "Deployment")[name])
    for variable in list(os.environ):
        if variable.startswith("PENSTOCK_"):
            monkeypatch.delenv(variable)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    settings = read_settings(service_type(name).settings_type)
    known = {f"PENSTOCK_{field.upper()}" for field in type(settings).model_fields}
    known |= {
        str(field.validation_alias or f"PENSTOCK_AUTH_{name.upper()}")
        for name, field in type(settings.auth).model_fields.items()
    }
    known |= {str(value) for value in vars(environment_variables).values()}  # of OpenTelemetry
    assert set(given) <= known
    assert settings.nats_url.startswith(("nats://nats", "tls://nats"))
    assert settings.host == "0.0.0.0"


FRAME = "PENSTOCK_MAX_FRAME_BYTES"


@pytest.mark.parametrize("rendering", ["default", "small", "usual", "large"])
def test_the_limits_of_frames_fit_the_memory_of_the_services_that_carry_them(
    rendering: str,
) -> None:
    found = of_kind(rendering, "Deployment")
    connector, normalizer = (environment(found[name]) for name in ("connector", "normalizer"))
    assert connector[FRAME] == normalizer[FRAME]
    frame_mib = int(connector[FRAME]) / 2**20
    for name in ("connector", "normalizer", "edge"):
        [container] = found[name]["spec"]["template"]["spec"]["containers"]
        limit_mib = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
        # A process at rest has less than 160 MiB; a frame takes up to six times its size.
        assert 160 + 4 * 6 * frame_mib <= limit_mib
        assert frame_mib > limit_mib / 48


@needs_helm
@pytest.mark.parametrize(
    ("switches", "frame"),
    [
        ("connector.resources.limits.memory=1Gi,normalizer.resources.limits.memory=1.5Gi", 14),
        (f"env.{FRAME}=5", None),
        ("defaults.resources.limits.memory=null", None),
    ],
)
def test_the_least_memory_decides_and_a_value_of_the_user_is_kept(
    switches: str, frame: int | None
) -> None:
    found = charts.objects(charts.template([*charts.OF_USER, "--set", switches]))
    [connector] = (
        each
        for each in found
        if each["kind"] == "Deployment" and name_of(each).endswith("-connector")
    )
    given = environment(connector).get(FRAME)
    expected = str(frame * 2**20) if frame else "5" if FRAME in switches else None
    assert given == expected


def test_each_pod_has_the_password_of_its_own_nats_user_and_no_other() -> None:
    users = {user.name for user in USERS}
    for rendering, name, spec in pods():
        for volume in spec.get("volumes", []):
            if volume["name"] == "nats":
                [item] = volume["secret"]["items"]
                assert item["key"] in users
                own = "operator" if name.endswith("-streams") else name.rsplit("-", 1)[1]
                assert item == {"key": own, "path": own}, rendering


def test_only_services_that_call_agent_servers_have_their_headers(tmp_path: Path) -> None:
    calls = {"connector", "edge"}
    for name, each in of_kind("default", "Deployment").items():
        spec = each["spec"]["template"]["spec"]
        [config] = [volume for volume in spec["volumes"] if volume["name"] == "config"]
        key = config["configMap"]["items"][0]["key"]
        text = of_kind("default", "ConfigMap")["demo-penstock"]["data"][key]
        assert ("Authorization" in text) == (name in calls)
        assert ("envFrom" in spec["containers"][0]) == (name in calls)
        file = tmp_path / key
        file.write_text(text.replace("${ASSISTANT_TOKEN}", "token"))
        assert load_config(file).agents[0].id == "assistant"


@pytest.mark.parametrize("rendering", ["default", "everything", "open"])
def test_only_services_with_an_api_have_what_checks_callers_and_all_have_one_csrf_secret(
    rendering: str,
) -> None:
    for name, each in of_kind(rendering, "Deployment").items():
        given = environment(each)
        of_auth = {variable for variable in given if variable.startswith("PENSTOCK_AUTH_")}
        if not service_type(name).operations:
            assert not of_auth | {"PENSTOCK_INSECURE_BIND"} & set(given), name
            continue
        assert ("PENSTOCK_AUTH_JWT_SECRET" in of_auth) == (rendering == "default")
        assert ("PENSTOCK_AUTH_JWKS_URL" in of_auth) == (rendering == "everything")
        assert ("PENSTOCK_AUTH_CSRF_SECRET" in of_auth) == (rendering != "open")
        [container] = each["spec"]["template"]["spec"]["containers"]
        named = [e["valueFrom"]["secretKeyRef"] for e in container["env"] if "CSRF" in e["name"]]
        keys = "demo-bridge-keys" if rendering == "everything" else "demo-penstock-keys"
        assert named in ([], [{"name": keys, "key": "csrf-secret"}])
        rules = [e["valueFrom"]["secretKeyRef"] for e in container["env"] if "RULE" in e["name"]]
        key_of_rules = {"name": keys, "key": "rule-keys", "optional": True}
        assert rules == ([key_of_rules] if name == "automations" else []), name
        assert keys in [name_of(x) for x in charts.committed(rendering) if x["kind"] == "Secret"]


@pytest.mark.parametrize(
    ("rendering", "url"),
    [
        ("everything", "https://penstock.example"),
        ("all-in-one", "http://penstock.example"),
        ("default", None),
    ],
)
def test_addresses_of_links_are_those_of_the_ingress(rendering: str, url: str | None) -> None:
    found = {
        name: environment(each).get("PENSTOCK_PUBLIC_URL")
        for name, each in of_kind(rendering, "Deployment").items()
    }
    # The edge has it where a provider sends people back.
    names = {"all-in-one": ["all-in-one"], "everything": ["approvals", "edge"]}.get(rendering, [])
    assert {key: value for key, value in found.items() if value} == dict.fromkeys(names, url)


def test_the_edge_alone_has_the_secret_of_the_client_at_the_provider() -> None:
    for name, each in of_kind("everything", "Deployment").items():
        of_oidc = {key for key in environment(each) if key.startswith("PENSTOCK_OIDC_")}
        shared = {"PENSTOCK_OIDC_ISSUER", "PENSTOCK_OIDC_CLIENT_ID"}
        own = {"PENSTOCK_OIDC_CLIENT_SECRET", "PENSTOCK_OIDC_SCOPES"} if name == "edge" else set()
        assert of_oidc == (shared | own if service_type(name).operations else set()), name


@needs_helm
@pytest.mark.parametrize(("status", "code"), [(401, 0), (200, 1), (503, 1)])
def test_without_a_token_the_test_of_a_release_checks_that_callers_are_asked_who_they_are(
    status: int, code: int
) -> None:
    jwks = "auth.existingSecret=,auth.jwksUrl=https://issuer.example/keys"
    [pod] = [
        each
        for each in charts.objects(charts.template([*charts.OF_USER, "--set", jwks]))
        if each["kind"] == "Pod"
    ]
    script = pod["spec"]["containers"][0]["command"][2]

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        variables = {"PENSTOCK_URL": f"http://127.0.0.1:{server.server_port}"}
        paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", script], env=variables | paths, check=False)
        server.shutdown()
    assert done.returncode == code


# Routes, scaling, streams


def _path(path: str, kind: str) -> str:
    """Return a path of a route, with `=` before it if only this path is meant."""
    return f"={path}" if kind == "Exact" else path


def paths(rendering: str) -> dict[str, str]:
    [ingress] = of_kind(rendering, "Ingress").values()
    return {
        _path(each["path"], each["pathType"]): each["backend"]["service"]["name"]
        for each in ingress["spec"]["rules"][0]["http"]["paths"]
    }


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_the_ingress_leads_every_path_to_its_service(name: str) -> None:
    found = paths("everything")
    for operation in service_type(name).operations:
        prefixes = [
            prefix
            for prefix in found
            if prefix in ("/", f"={operation.path}")
            or f"{operation.path}/".startswith(f"{prefix}/")
        ]
        assert found[max(prefixes, key=len)] == f"demo-bridge-{name}", operation.path


def test_the_route_of_a_gateway_leads_as_the_ingress_does() -> None:
    [route] = of_kind("everything", "HTTPRoute").values()
    rules = route["spec"]["rules"]
    assert paths("everything") == {
        _path(each["path"]["value"], each["path"]["type"]): rule["backendRefs"][0]["name"]
        for rule in rules
        for each in rule["matches"]
    }
    assert all(rule["timeouts"] == {"request": "0s"} for rule in rules)
    [bare] = of_kind("open", "HTTPRoute").values()
    assert all("timeouts" not in rule for rule in bare["spec"]["rules"])


def test_the_ingress_does_not_buffer_and_waits_for_an_hour() -> None:
    [ingress] = of_kind("everything", "Ingress").values()
    nginx = "nginx.ingress.kubernetes.io"
    annotations = ingress["metadata"]["annotations"]
    assert annotations[f"{nginx}/proxy-buffering"] == "off"
    assert annotations[f"{nginx}/proxy-read-timeout"] == "3600"
    assert set(paths("all-in-one").values()) == {"demo-penstock-all-in-one"}


def test_what_scales_a_service_is_alone_in_setting_its_replicas() -> None:
    for rendering in charts.SETS:
        scaled = of_kind(rendering, "HorizontalPodAutoscaler") | of_kind(rendering, "ScaledObject")
        for name, each in of_kind(rendering, "Deployment").items():
            assert ("replicas" not in each["spec"]) == (name in scaled), (rendering, name)
    assert set(of_kind("everything", "ScaledObject")) == {"normalizer", "automations", "workflows"}


def test_keda_and_the_autoscaler_look_at_consumers_and_metrics_that_there_are() -> None:
    publish = {user.name: set(user.publish) for user in USERS}
    gauges = {metric._name for metric in vars(telemetry).values() if hasattr(metric, "_name")}
    for name, each in of_kind("everything", "ScaledObject").items():
        read = set()
        for trigger in each["spec"]["triggers"]:
            given = trigger["metadata"]
            if trigger["type"] == "nats-jetstream":
                stream, shard = kind_and_shard(given["stream"])
                assert f"$JS.API.CONSUMER.INFO.{stream}.{given['consumer']}" in publish[name]
                read.add((stream, shard))
        if name != "normalizer":
            assert {("EVENTS", 0), ("EVENTS", 1)} <= read
    assert "penstock_raw_frames" in gauges
    [autoscaler] = of_kind("everything", "HorizontalPodAutoscaler").values()
    pod, cpu = autoscaler["spec"]["metrics"]
    assert pod["pods"]["metric"]["name"] in gauges
    assert cpu["resource"]["name"] == "cpu"
    assert autoscaler["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300


def test_a_disruption_budget_is_only_there_for_several_pods() -> None:
    assert not of_kind("small", "PodDisruptionBudget")
    for each in of_kind("usual", "PodDisruptionBudget").values():
        # While NATS is away no pod is ready, and a node must still be drained.
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert set(of_kind("usual", "PodDisruptionBudget")) == SERVICES
    assert set(of_kind("everything", "PodDisruptionBudget")) == {
        *("connector", "edge", "approvals", "automations")
    }


def test_a_network_policy_names_every_pod_and_only_those_that_serve_take_clients() -> None:
    policies = of_kind("everything", "NetworkPolicy")
    assert set(policies) == {*SERVICES, "streams"}
    for name, each in policies.items():
        assert each["spec"]["policyTypes"] == ["Ingress", "Egress"]
        open_ports = {p["port"] for rule in each["spec"]["ingress"] for p in rule["ports"]}
        serves = bool(service_type(name).operations) if name in SERVICES else False
        expected = set() if name == "streams" else {9000}
        assert open_ports - {8000} == expected
        assert 8000 in open_ports or not serves
        everywhere = [rule for rule in each["spec"]["egress"] if "to" not in rule]
        ports = {p["port"] for rule in everywhere for p in rule["ports"]}
        assert ports <= {53, 443}


def test_every_service_exports_spans_to_the_collector_and_may_reach_it() -> None:
    policies = of_kind("everything", "NetworkPolicy")
    for name, each in of_kind("everything", "Deployment").items():
        given = environment(each)
        assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.observability.svc:4318"
        assert given["OTEL_TRACES_SAMPLER_ARG"] == "0.1"
        allowed = [rule for rule in policies[name]["spec"]["egress"] if rule.get("to") == COLLECTOR]
        assert [rule["ports"] for rule in allowed] == [[{"protocol": "TCP", "port": 4318}]]
    for each in of_kind("default", "Deployment").values():
        assert not [name for name in environment(each) if name.startswith("OTEL_")]


def test_every_service_may_reach_the_service_that_opens_its_content_keys() -> None:
    policies, bao = (
        of_kind("everything", "NetworkPolicy"),
        {"kubernetes.io/metadata.name": "openbao"},
    )
    for name, each in of_kind("everything", "Deployment").items():
        url = environment(each)["PENSTOCK_KMS_URL"]
        assert url == "https://bao.openbao:8200/v1/transit/keys/penstock"
        allowed = [
            rule["ports"]
            for rule in policies[name]["spec"]["egress"]
            if rule.get("to") == [{"namespaceSelector": {"matchLabels": bao}}]
        ]
        assert allowed == [[{"protocol": "TCP", "port": 8200}]]
    for each in of_kind("default", "Deployment").values():
        assert not [name for name in environment(each) if name.startswith("PENSTOCK_KMS_")]


def test_an_upgrade_keeps_what_operators_have_put_into_the_secret_of_keys() -> None:
    """A Secret that is rendered without a key may lose it, as after `helm uninstall`."""
    rendered = (CHART / "templates/keys.yaml").read_text()
    for each in of_kind("everything", "Deployment").values():
        [container] = each["spec"]["template"]["spec"]["containers"]
        named = [one.get("valueFrom", {}).get("secretKeyRef", {}) for one in container["env"]]
        for key in (one["key"] for one in named if one.get("name") == "demo-bridge-keys"):
            assert f"{key}:" in rendered or f'"{key}"' in rendered, key


def test_exactly_one_makes_the_streams() -> None:
    made = {
        rendering: (bool(of_kind(rendering, "Job")), bool(of_kind(rendering, "Stream")))
        for rendering in charts.SETS
    }
    assert made.pop("nack") == (False, True)
    assert made.pop("open") == (False, False)
    assert made.pop("all-in-one") == (False, False)
    assert set(made.values()) == {(True, False)}


def test_nacks_streams_are_those_of_the_services() -> None:
    file = yaml.safe_load((CHART / "files/streams.yaml").read_text())
    assert file == nack.specs(), "run `make contract`"
    rendered = [each["spec"] for each in charts.committed("nack") if each["kind"] == "Stream"]
    assert rendered
    for each in rendered:
        assert (each["preventDelete"], each["preventUpdate"]) == (True, True)
        assert "maxAge" in each, "NACK's control loop keeps messages for a year otherwise"
        if each.get("allowMsgSchedules"):
            assert each["allowRollup"], "NACK's control loop makes no such stream otherwise"
        assert each["storage"] == "file"


@needs_helm
def test_dashboards_and_alerts_of_the_folders_are_installed() -> None:
    switches = (
        "monitoring.rules.enabled=true,monitoring.dashboards.enabled=true,"
        "monitoring.rules.docs=https://wiki/docs/"
    )
    found = charts.objects(charts.template([*charts.OF_USER, "--set", switches]))
    dashboards = [each for each in found if "grafana_dashboard" in each["metadata"]["labels"]]
    alerts = [each for each in found if each["kind"] == "PrometheusRule"]
    assert len(dashboards) == len(list((CHART / "files/grafana").glob("*.json")))
    assert len(alerts) == len(list((CHART / "files/prometheus").glob("*.rules.yaml")))
    text = (HERE / "schemas/PrometheusRule.monitoring.coreos.com.v1.json").read_text()
    # Python takes the flag of a pattern only at its beginning; Go takes it anywhere.
    schema = json.loads(text.replace('"^(?i)', '"(?i)^'))
    for each in alerts:
        jsonschema.validate(each["spec"], schema)
        rules = [rule for group in each["spec"]["groups"] for rule in group["rules"]]
        for rule in rules:
            address = f"https://wiki/docs/operate/alerts.md#{rule['alert'].lower()}"
            assert rule["annotations"]["runbook_url"] == address
            assert "runbook" not in rule["annotations"]
