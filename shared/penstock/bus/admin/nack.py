"""Writes the streams as resources of NACK, the JetStream controller of Kubernetes.

`python -m penstock.bus.admin.nack` prints deploy/helm/penstock/files/streams.yaml. The chart sets
replicas and ages from its values: an age that a value sets has the name of the value there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import yaml

from penstock.bus.admin.configuration import Configuration, declared
from penstock.bus.streams import Retention

_NS_PER_S: Final = 1_000_000_000
# Ages that no stream has otherwise, by the names that stand for them.
_AGES_S: Final = {
    name: 1_000_000_000.0 + number
    for number, name in enumerate(
        ("raw", "events", "deadletters", "deliveries", "decisions", "costs", "runs")
    )
}
_NAMES: Final = {age_s: name for name, age_s in _AGES_S.items()}


def _duration(nanoseconds: int) -> str:
    seconds = nanoseconds // _NS_PER_S
    return _NAMES.get(seconds, f"{seconds}s")


def _same(value: Any) -> Any:
    return value


def _text(value: Enum) -> str:
    return str(value.value)


# The fields of the JetStream API, with their names and forms in a Stream of `jetstream.nats.io`.
_FIELDS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "name": ("name", _same),
    "description": ("description", _same),
    "subjects": ("subjects", _same),
    "retention": ("retention", _text),
    "discard": ("discard", _text),
    "storage": ("storage", _text),
    "max_age": ("maxAge", _duration),
    "max_bytes": ("maxBytes", _same),
    "max_consumers": ("maxConsumers", _same),
    "max_msgs": ("maxMsgs", _same),
    "max_msg_size": ("maxMsgSize", _same),
    "max_msgs_per_subject": ("maxMsgsPerSubject", _same),
    "num_replicas": ("replicas", _same),
    "no_ack": ("noAck", _same),
    "duplicate_window": ("duplicateWindow", _duration),
    "metadata": ("metadata", _same),
    "allow_direct": ("allowDirect", _same),
    "allow_rollup_hdrs": ("allowRollup", _same),
    "allow_msg_ttl": ("allowMsgTtl", _same),
    "allow_msg_schedules": ("allowMsgSchedules", _same),
    "allow_atomic": ("allowAtomicPublish", _same),
    "subject_delete_marker_ttl": ("subjectDeleteMarkerTtl", _duration),
    "deny_delete": ("denyDelete", _same),
    "deny_purge": ("denyPurge", _same),
    "mirror_direct": ("mirrorDirect", _same),
    "sealed": ("sealed", _same),
    "compression": ("compression", _text),
    "subject_transform": (
        "subjectTransform",
        lambda each: {"source": each["src"], "dest": each["dest"]},
    ),
    "republish": ("republish", lambda each: {"source": each["src"], "destination": each["dest"]}),
}


def spec(configuration: Configuration) -> dict[str, Any]:
    """Return the `spec` of a Stream with this configuration, without most fields that are unset. A
    field that has no name here raises KeyError."""
    # NACK's control loop keeps messages for a year where a stream has no age.
    made: dict[str, Any] = {"maxAge": _duration(0)}
    if configuration.get("allow_msg_schedules"):
        # NATS sets this field itself, except for pedantic clients such as NACK's control loop.
        made["allowRollup"] = True
    for field, value in configuration.items():
        if not value:
            continue
        name, form = _FIELDS[field]
        made[name] = form(value)
    return made


def specs() -> list[dict[str, Any]]:
    ages_s: dict[str, Any] = {f"{name}_max_age_s": age_s for name, age_s in _AGES_S.items()}
    return [spec(each) for each in declared(Retention(**ages_s))]


def main() -> None:
    print("# Made by `make contract` from penstock/bus/streams.py: change it there.")
    print(yaml.safe_dump(specs(), sort_keys=True), end="")


if __name__ == "__main__":
    main()
