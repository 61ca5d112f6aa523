"""The agents of the configuration file: each protocol has fields of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from penstock.settings import (
    AdkAgent,
    AgentConfig,
    AgnoAgent,
    AguiAgent,
    Config,
    ConfigurationError,
    WorkflowAgent,
    load_config,
)

URL = "http://127.0.0.1:9"


def loaded(folder: Path, **fields: Any) -> AgentConfig:
    file = folder / "penstock.yaml"
    file.write_text(yaml.safe_dump({"agents": [{"id": "support", "url": URL, **fields}]}))
    [agent] = load_config(file).agents
    return agent


def refused(folder: Path, **fields: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        loaded(folder, **fields)
    return str(error.value)


@pytest.mark.parametrize(
    ("protocol", "model"), [("agno", AgnoAgent), ("adk", AdkAgent), ("agui", AguiAgent)]
)
def test_an_agent_is_of_its_protocols_model(tmp_path: Path, protocol: str, model: type) -> None:
    agent = loaded(tmp_path, protocol=protocol)
    assert type(agent) is model
    assert Config(agents=[agent]) == Config.model_validate({"agents": [agent.model_dump()]})


@pytest.mark.parametrize(
    ("protocol", "field", "value", "protocols"),
    [
        ("agno", "resumable", True, "adk"),
        ("agui", "resumable", True, "adk"),
        ("adk", "thread_ids", "verbatim", "agno or agui"),
        ("adk", "tools", [{"name": "x"}], "agui"),
        ("agno", "raw", "keep", "agui"),
        ("agno", "starts_while_paused", "send", "agui"),
        ("adk", "protocol_version", "", "agui"),
    ],
)
def test_a_field_of_another_protocol_is_an_error_that_names_it(
    tmp_path: Path, protocol: str, field: str, value: Any, protocols: str
) -> None:
    text = refused(tmp_path, **{"protocol": protocol, field: value})
    assert f"agent support (protocol {protocol})" in text
    assert f"the field `{field}` is for the protocol {protocols} only: remove it" in text
    assert "agents.0: " in text


def test_an_unknown_field_is_an_error_that_guesses(tmp_path: Path) -> None:
    text = refused(tmp_path, protocol="adk", timeouts=3, name=None)
    assert 'there is no field `timeouts`: did you mean "timeout_s"?' in text


@pytest.mark.parametrize("given", [{}, {"protocol": "mcp"}])
def test_an_error_names_the_protocols(tmp_path: Path, given: dict[str, str]) -> None:
    assert "agents.0.protocol: must be one of agno, adk, agui" in refused(tmp_path, **given)


def test_an_error_names_the_place_in_the_file(tmp_path: Path) -> None:
    assert "agents.0.timeout_s: " in refused(tmp_path, protocol="agno", timeout_s=0)
    assert "agents.0.url: " in refused(tmp_path, protocol="agui", url="http://")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:9000", "http:// or https://: write http://localhost:9000"),
        ("ftp://files", "must begin with http:// or https://"),
        ("me:secret@files", "must begin with http:// or https://"),
    ],
)
def test_a_url_without_its_scheme_is_told_as_it_must_be(
    tmp_path: Path, url: str, told: str
) -> None:
    assert refused(tmp_path, protocol="agno", url=url).endswith(told)


def test_an_unset_variable_hides_no_other_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    (tmp_path / "penstock.yaml").write_text(
        """\
agent: []
agents:
- id: one
  protocol: agno
  url: ${NO_SUCH}
- id: two
  protocol: adk
  url: http://127.0.0.1:9
  header: {}
  headers:
    X-Key: a ${NO_SUCH} ${NO_SUCH}
"""
    )
    with pytest.raises(ConfigurationError) as error:
        load_config(tmp_path / "penstock.yaml")
    _, *lines = str(error.value).splitlines()
    assert sorted(lines) == [
        "  line 11: agents.1.headers.X-Key: the environment has no value for NO_SUCH",
        '  line 1: agent: there is no such field: did you mean "agents"?',
        "  line 5: agents.0.url: the environment has no value for NO_SUCH",
        "  line 6: agents.1: agent two (protocol adk): there is no field `header`: did you mean "
        '"headers"?',
    ]


@pytest.mark.parametrize(("protocol", "kept"), [("agno", URL), ("adk", URL), ("agui", f"{URL}/")])
def test_only_an_agui_url_keeps_its_slash(tmp_path: Path, protocol: str, kept: str) -> None:
    agent = loaded(tmp_path, protocol=protocol, url=f"{URL}/")
    assert not isinstance(agent, WorkflowAgent)
    assert agent.url == kept


def test_a_workflow_has_no_server() -> None:
    config = Config.model_validate(
        {
            "agents": [
                {"id": "review", "protocol": "workflow", "topology_id": 200},
                {"id": "old", "protocol": "workflow", "agent": "review", "version": "3"},
                {"id": "linter", "protocol": "agno", "url": URL},
            ]
        }
    )
    review, old, linter = config.agents
    assert isinstance(review, WorkflowAgent)
    assert (review.agent, review.version, review.kind) == ("review", None, "workflow")
    assert isinstance(old, WorkflowAgent)
    assert (old.agent, old.version) == ("review", "3")
    assert config.by_topology(200) is review
    assert config.server_agents == [linter]
    assert (config.server_agent("review"), config.server_agent("linter")) == (None, linter)


@pytest.mark.parametrize(
    ("field", "value"), [("url", URL), ("headers", {"a": "b"}), ("accepts", ["state"])]
)
def test_a_workflow_has_no_field_about_a_server(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"`{field}` is for the protocol agno or adk or agui"):
        Config.model_validate({"agents": [{"id": "w", "protocol": "workflow", field: value}]})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("agents:\n- id: a\n  url: [\n", "penstock.yaml, line 4, is not YAML: "),
        ("agents: []\nagents: []\n", "line 2: agents: the key is there twice"),
        (
            "agents:\n- id: a\n  protocol: agno\n  id: b\n",
            "line 4: id: the key is there twice",
        ),
        (
            f"agents:\n- id: a\n  protocol: agui\n  url: {URL}\n  colour: red\n",
            "line 2: agents.0: agent a (protocol agui): there is no field `colour`",
        ),
    ],
    ids=["syntax", "twice", "twice inside", "unknown field"],
)
def test_a_mistake_of_the_file_has_its_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as error:
        load_config(file)
    assert told in str(error.value)
