"""The objects of the committed renderings, as the tests of the chart ask for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helm import charts
from helm.charts import Object

ALL = [(name, each) for name in charts.SETS for each in charts.committed(name)]
needs_helm = pytest.mark.skipif(
    charts.helm() is None, reason="there is no Helm: `make kubernetes` builds it with Go"
)


def name_of(each: Object) -> str:
    return str(each["metadata"]["name"])


def of_kind(rendering: str, *kinds: str) -> dict[str, Object]:
    """Return the objects of these kinds by their component, or else by their name."""
    return {
        each["metadata"]["labels"].get("app.kubernetes.io/component", name_of(each)): each
        for each in charts.committed(rendering)
        if each["kind"] in kinds
    }


def pods() -> Iterator[tuple[str, str, Object]]:
    """Yield the spec of every pod: the rendering, the object's name, the spec."""
    for rendering, each in ALL:
        if each["kind"] == "Pod":
            yield rendering, name_of(each), each["spec"]
        elif each["kind"] in ("Deployment", "Job"):
            yield rendering, name_of(each), each["spec"]["template"]["spec"]


def environment(deployment: Object) -> dict[str, str]:
    """Return a container's environment; a value from a Secret is a long word.

    A value from a ConfigMap, which a user has named, is left out.
    """
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {
        each["name"]: each.get("value", "s" * 40)
        for each in container["env"]
        if "configMapKeyRef" not in each.get("valueFrom", {})
    }
