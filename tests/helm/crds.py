"""The custom resources of other projects, from their Go modules.

`python -m helm.crds` writes tests/helm/schemas anew: the schemas of `spec`, without descriptions.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any, Final

import yaml

HERE = Path(__file__).parent
KEDA: Final = "github.com/kedacore/keda/v2@v2.21.0"
GATEWAY: Final = "sigs.k8s.io/gateway-api@v1.4.0"
PROMETHEUS: Final = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
_MONITORS: Final = "example/prometheus-operator-crd/monitoring.coreos.com_"
# By kind, group and version: the module and the file in it. (NACK's module is on no proxy.)
PLACES: Final = {
    "ScaledObject.keda.sh.v1alpha1": (KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml"),
    "HTTPRoute.gateway.networking.k8s.io.v1": (
        *(GATEWAY, "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    ),
    "ServiceMonitor.monitoring.coreos.com.v1": (PROMETHEUS, f"{_MONITORS}servicemonitors.yaml"),
    "PrometheusRule.monitoring.coreos.com.v1": (PROMETHEUS, f"{_MONITORS}prometheusrules.yaml"),
}


def definition(name: str) -> dict[str, Any]:
    """Return a CustomResourceDefinition; Go downloads its module and checks the module's sum."""
    module, path = PLACES[name]
    go = shutil.which("go") or "/usr/local/go/bin/go"
    done = subprocess.run(
        [go, "mod", "download", "-json", module],
        cwd="/",
        capture_output=True,
        check=True,
        timeout=300,
    )
    with zipfile.ZipFile(json.loads(done.stdout)["Zip"]) as archive:
        found: dict[str, Any] = yaml.safe_load(archive.read(f"{module}/{path}"))
    return found


def trimmed(name: str) -> dict[str, Any]:
    """Return the JSON Schema of `spec`, which refuses fields that an API server would drop."""
    module, path = PLACES[name]
    version = name.rsplit(".", 1)[1]
    [served] = [each for each in definition(name)["spec"]["versions"] if each["name"] == version]
    schema = _trimmed(served["schema"]["openAPIV3Schema"]["properties"]["spec"])
    origin = module.split("@")[0]
    comment = f"From {origin} (Apache-2.0), {path}: the schema of `spec`, without descriptions."
    return {"$comment": comment, **schema}


def _trimmed(value: Any) -> Any:
    if isinstance(value, list):
        return [_trimmed(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {
        key: _trimmed(each)
        for key, each in value.items()
        if not (key == "description" and isinstance(each, str))
        and not key.startswith("x-kubernetes")
    }
    free = value.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in kept
    if kept.get("type") == "object" and isinstance(kept.get("properties"), dict) and not free:
        kept["additionalProperties"] = False
    return kept


if __name__ == "__main__":
    for each in PLACES:
        text = json.dumps(trimmed(each), indent=1)
        (HERE / f"schemas/{each}.json").write_text(f"{text}\n")
