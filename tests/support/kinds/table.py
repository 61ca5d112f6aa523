"""The table of kinds: what asks, with what, and what each way of deciding must do."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from support.real.upstreams import Upstream

SECRET = "oauth-code-7f3b"
EMAIL = {"subject": "{}", "body": "Body", "to_address": "x@example.org"}
AUTH = {"authType": "oauth2", "exchangedAuthCredential": {"oauth2": {"authCode": SECRET}}}
# ADK 1.16 wants its whole configuration back, in which 2.13 puts the missing members itself.
AUTH_OLDER = {
    "authScheme": {
        "type": "oauth2",
        "flows": {
            "authorizationCode": {
                "authorizationUrl": "https://idp.example/auth",
                "tokenUrl": "https://idp.example/token",
                "scopes": {"cal": "calendar"},
            }
        },
    },
    "rawAuthCredential": {
        "authType": "oauth2",
        "oauth2": {"clientId": "cid", "clientSecret": "not-a-real-secret"},
    },
    "exchangedAuthCredential": {"authType": "oauth2", "oauth2": {"authCode": SECRET}},
}
PICK_COLOR = {
    "name": "pick_color",
    "description": "pick",
    "parameters": {"type": "object", "properties": {}},
}

Server = Literal["agno", "adk", "pydantic_ai", "agno_agui", "langgraph"]
Args = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One pause of a real server.

    `{}` in a message stands for a text that no other run has. `runs` has the calls that the server
    logs when they run: `(tool, arguments)`. `edited` has other arguments for the first item: none
    if the server's protocol does not take them. `hears` says whether the agent repeats the note of
    a rejection.
    """

    server: Server
    agent: str
    message: str
    kinds: tuple[str, ...] = ("confirmation",)
    value: Any = None
    runs: tuple[tuple[str, Args], ...] = ()
    edited: Args | None = None
    hears: bool = False
    rejects: bool = True
    audited: int | None = None  # how many `ran` the audit gets; default: one for each of `runs`
    tools: bool = False  # the run is given a tool of the frontend
    after_reject: str = "lifecycle.completed"  # the run's last event after a rejection
    older: bool = False  # the older version of this server asks the same

    @property
    def id(self) -> str:
        return f"{self.agent} {self.message.split()[0]}"

    @property
    def ran(self) -> int:
        return len(self.runs) if self.audited is None else self.audited


def ways_out(*kinds: str) -> dict[str, Any]:
    """Return the fields of a row whose kinds can only be answered."""
    return {"kinds": kinds, "rejects": False}


DELETE: tuple[tuple[str, Args], ...] = (("delete_file", {"path": "/etc/passwd"}),)
TITLE = {"title": "Edited {}"}

AGNO = [
    Row(
        *("agno", "agno", "confirm {}"),
        runs=(("create_document", {"title": "{}"}),),
        edited=TITLE,
        hears=True,
        older=True,
    ),
    Row(
        *("agno", "agno", "confirm2"),
        kinds=("confirmation", "confirmation"),
        runs=(("create_document", {"title": "One"}), ("delete_document", {"doc_id": "d-2"})),
        edited=TITLE,
        hears=True,
        older=True,
    ),
    Row(
        *("agno", "agno", "userinput {}"),
        **ways_out("input"),
        value=EMAIL,
        runs=(("send_email", {"subject": "{}", "to_address": "x@example.org"}),),
        older=True,
    ),
    Row(
        "agno",
        "agno",
        "getinput",
        **ways_out("input"),
        value={"city": "Rome"},
        audited=1,
        older=True,
    ),
    Row("agno", "agno", "external", ("external",), "a.txt", hears=True, audited=1, older=True),
    Row(
        *("agno", "agno", "feedback"),
        **ways_out("feedback"),
        value={"Which city?": ["Rome"]},
        audited=1,
    ),
    Row(
        *("agno", "agno-team", "teamconfirm"),
        runs=(("create_document", {"title": "Leader doc"}),),
        hears=True,
    ),
    Row(
        *("agno", "agno-team", "delegateconfirm"),
        runs=(("create_document", {"title": "Team Doc"}),),
    ),
    Row(
        *("agno", "agno-flow", "confirm {}"),
        runs=(("create_document", {"title": "{}"}),),
        edited=TITLE,
    ),
    Row(
        *("agno", "agno-flow-of-team", "teamconfirm"),
        runs=(("create_document", {"title": "Leader doc"}),),
        edited=TITLE,
    ),
    Row("agno", "agno-workflow", "text"),
    Row("agno", "agno-input", "text", **ways_out("input"), value={"who": "Ada"}),
    Row("agno", "agno-route", "text", **ways_out("selection"), value=["r1"]),
    Row("agno", "agno-review", "text", ("review",)),
]
ADK = [
    Row("adk", "adk", "confirm", runs=DELETE, older=True),
    Row(
        *("adk", "adk", "dynconfirm"),
        value={"approved_amount": 5},
        runs=(("wire_money", {"amount": 2500, "to": "ACME"}),),
        older=True,
    ),
    Row(
        *("adk", "adk", "bigconfirm"),
        kinds=("confirmation", "confirmation"),
        runs=(("delete_file", {"path": "/etc/a"}), ("delete_file", {"path": "/etc/b"})),
        older=True,
    ),
    Row("adk", "adk", "ask", **ways_out("input"), value="blue"),
    Row(
        *("adk", "adk", "needauth"),
        **ways_out("credential"),
        value=AUTH,
        audited=1,
        older=True,
    ),
    Row("adk", "adk-resumable", "confirm", runs=DELETE, older=True),
    Row("adk", "adk-resumable", "ask", **ways_out("input"), value="blue"),
    Row(
        "adk",
        "adk-resumable",
        "needauth",
        **ways_out("credential"),
        value=AUTH,
        audited=1,
        older=True,
    ),
    Row("adk", "adk-workflow", "x", **ways_out("input"), value={"approved": True}),
    Row("adk", "adk-team", "confirm", runs=DELETE, older=True),
    Row("adk", "adk-sequence", "x", runs=DELETE, older=True),
    Row("adk", "adk-sequence-resumable", "x", runs=DELETE, older=True),
]
PATH: tuple[tuple[str, Args], ...] = (("delete_file", {"path": "{}"}),)
AGUI = [
    Row(
        *("pydantic_ai", "pydantic-ai", "delete {}"),
        runs=PATH,
        edited={"path": "edited-{}"},
        hears=True,
    ),
    Row("pydantic_ai", "pydantic-ai-tool", "color", ("external",), "red", audited=1, tools=True),
    Row("agno_agui", "agno-agui", "delete {}", runs=PATH),
    Row("agno_agui", "agno-agui-tool", "color", ("external",), "red", audited=1, tools=True),
    Row("langgraph", "langgraph", "delete {}", runs=PATH, audited=0),
    Row(
        *("langgraph", "langgraph-custom", "delete {}"),
        **ways_out("input"),
        value={"approved": True},
        runs=PATH,
        audited=0,
    ),
]
AGNO_OLDER = [row for row in AGNO if row.older]
ADK_OLDER = [
    replace(row, value=AUTH_OLDER) if row.value is AUTH else row for row in ADK if row.older
]


def agents(servers: dict[Server, Upstream]) -> list[dict[str, Any]]:
    """Return the configuration of the rows' agents on these servers."""
    made: list[dict[str, Any]] = []
    if agno := servers.get("agno"):
        given = {"protocol": "agno", "url": agno.url}
        made += [{"id": "agno", "agent": "demo-agent", **given}]
        made += [{"id": "agno-team", "agent": "demo-team", "kind": "team", **given}]
        flows = {"flow": "simple", "flow-of-team": "team", "workflow": "hitl"}
        flows |= {name: name for name in ("input", "route", "review")}
        made += [
            {"id": f"agno-{name}", "agent": f"{flow}-wf", "kind": "workflow", **given}
            for name, flow in flows.items()
        ]
    if adk := servers.get("adk"):
        apps = {
            "adk": "demo",
            "adk-resumable": "resumable",
            "adk-workflow": "wfhitl",
            "adk-team": "teamconfirm",
            "adk-sequence": "seqconfirm",
            "adk-sequence-resumable": "seqconfirm_r",
        }
        made += [
            {
                **{"id": name, "protocol": "adk", "url": adk.url, "agent": app},
                "resumable": "resumable" in name,
            }
            for name, app in apps.items()
        ]
    paths: dict[Server, dict[str, str]] = {
        "pydantic_ai": {"pydantic-ai": "approval", "pydantic-ai-tool": "frontend"},
        "agno_agui": {"agno-agui": "approval/agui", "agno-agui-tool": "frontend/agui"},
        "langgraph": {"langgraph": "delete_std", "langgraph-custom": "delete"},
    }
    made += [
        {"id": name, "protocol": "agui", "url": f"{servers[server].url}/{path}"}
        for server, named in paths.items()
        if server in servers
        for name, path in named.items()
    ]
    return made


def named(value: Any, mark: str) -> Any:
    """Return the value with the run's own text in the place of `{}`."""
    return json.loads(json.dumps(value).replace("{}", mark)) if value else value
