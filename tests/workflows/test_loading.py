"""A definition is loaded from YAML or JSON, and each mistake is named with its line and reason."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bus.streams import Retention
from penstock_workflows.definition import (
    Definition,
    InvalidDefinition,
    compile,
    load,
    load_value,
)
from penstock_workflows.definition.checks import unknown_references
from penstock_workflows.definition.document import read_document
from penstock_workflows.definition.model import MAX_DURATION_S, seconds
from penstock_workflows.definition.problems import Problem

EXAMPLES = sorted((Path(__file__).parent / "definitions").glob("*.yaml"))
VALUES = [yaml.safe_load(path.read_text()) for path in EXAMPLES]
CALL = {
    "url": "https://x",
    "method": "PUT",
    "query": {"q": "input.q", "n": "1"},
    "headers": {"X-Id": "id ${input.id}"},
    "expect": [200, 404],
}
VALUES.append(
    {
        "dsl": "penstock/1",
        "name": "w",
        "version": "1",
        "steps": {"a": {"call": CALL}},
        "output": "a",
    }
)
FIELDS = ["steps", "run", "call", "listen", "approve", "retry", "repeat", "wait", "set", "typo"]
HEAD = 'dsl: penstock/1\nname: w\nversion: "1"\n'


def told(text: str) -> list[str]:
    """Return the mistakes of a document, of which the steps begin in line 5."""
    with pytest.raises(InvalidDefinition) as refused:
        load(text.encode())
    return [str(each) for each in refused.value.problems]


def steps(text: str) -> str:
    """Return a definition with these steps, the first of which is in line 5."""
    lines = "\n".join(f"  {line}" for line in text.split("\n"))
    return f"{HEAD}steps:\n{lines}\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_definitions(path: Path) -> None:
    loaded = load(path.read_bytes())
    assert loaded.workflow.name == path.stem


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_definition_in_json_is_the_same(path: Path) -> None:
    from_yaml = load(path.read_bytes())
    as_json = json.dumps(from_yaml.value, indent="\t", ensure_ascii=True)
    from_json = load(as_json.encode())
    assert from_json.value == from_yaml.value
    assert from_json.digest == from_yaml.digest


BAD = {
    "no field": (
        steps("a: {set: '1', out: '2'}"),
        "line 5, column 17: steps.a.out: there is no field 'out'",
    ),
    "did you mean": (steps("a: {set: '1', outptu: '2'}"), 'did you mean "output"?'),
    "inner field": (
        steps("a:\n  run: {agent: x, mesage: '1'}"),
        "steps.a.run.mesage: there is no field",
    ),
    "field of for_each": (
        steps("a:\n  set: '1'\n  for_each: {in: '[1]', like: x}"),
        "line 7, column 27: steps.a.for_each.like",
    ),
    "no action": (steps("a: {needs: []}"), "this one has none of them"),
    "two actions": (steps("a: {set: '1', wait: 5s}"), "this one has wait and set"),
    "no needs": (
        steps("build: {set: '1'}\nb: {needs: [biuld], set: '1'}"),
        "line 6, column 15: steps.b.needs.0: there is no step 'biuld': did you mean \"build\"?",
    ),
    "cycle": (
        steps("a: {needs: [c], set: '1'}\nb: {needs: [a], set: '1'}\nc: {needs: [b], set: '1'}"),
        "the steps need each other: ",
    ),
    "itself": (steps("a: {needs: [a], set: '1'}"), "the step a needs itself"),
    "cycle by failure": (
        steps("a: {set: '1', on_failure: b, needs: [b]}\nb: {set: '1'}"),
        "the steps need each other: ",
    ),
    "no handler": (
        steps("a: {set: '1', on_failure: continu}"),
        "there is no step 'continu': did you mean \"continue\"?",
    ),
    "undeclared": (
        steps("a: {set: '1'}\nb: {set: '1 + a.output'}"),
        "line 6, column 17: steps.b.set: undeclared reference to 'a.output': add a to `needs`",
    ),
    "unknown variable": (
        steps("a: {set: 'inptu.x'}"),
        "undeclared reference to 'inptu.x': did you mean \"input\"?",
    ),
    "loop variable in when": (
        steps("a: {for_each: {in: '[1]', as: x}, when: 'x == 1', set: x}"),
        "steps.a.when: undeclared reference to 'x'",
    ),
    "event elsewhere": (steps("a: {set: event.type}"), "undeclared reference to 'event"),
    "result elsewhere": (
        steps("a: {run: {agent: x, message: result.text}}"),
        "undeclared reference",
    ),
    "wrong type": (
        steps("a:\n  set: '1'\n  when: '\"yes\"'"),
        "line 7, column 12: steps.a.when: gives STRING, must be true or false",
    ),
    "no message": (
        steps("a: {run: {agent: x}}"),
        "line 5, column 12: steps.a.run.message: is missing",
    ),
    "message is no text": (
        steps("a: {run: {agent: x, message: '1'}}"),
        "gives INT, must be a text",
    ),
    "input is no object": (
        steps("a: {run: {agent: x, message: '\"x\"', input: '[1]'}}"),
        "must be an object",
    ),
    "for_each of no list": (steps("a: {for_each: {in: '1'}, set: item}"), "must be a list"),
    "step has no such part": (
        steps("a: {set: '1'}\nb: {needs: [a], set: a.outptu}"),
        "a step has no 'outptu': did you mean \"output\"?",
    ),
    "result has no such part": (
        steps("a: {run: {agent: x, message: '\"x\"'}, output: result.txt}"),
        "result has no 'txt': did you mean \"text\"?",
    ),
    "input has no such part": (
        f"{HEAD}input: {{properties: {{diff: {{}}}}, additionalProperties: false}}\n"
        "steps: {a: {set: input.dif}}",
        "input has no 'dif': did you mean \"diff\"?",
    ),
    "syntax": (steps("a: {set: '1 +'}"), "Syntax error"),
    "a text without the quotes of CEL": (
        steps("a: {run: {agent: x, message: Say hello.}}"),
        "A text needs two pairs of quotes: '\"Say hello.\"'",
    ),
    "in a template": (
        steps("a:\n  run: {agent: x, message: 'Hello ${inptu.x}'}"),
        "line 6, column 39: steps.a.run.message: undeclared reference to 'inptu.x': did you mean",
    ),
    "in a template of several lines": (
        steps("a:\n  set: |\n    Hello\n      and ${nope}"),
        "line 8, column 15: steps.a.set: undeclared reference to 'nope'",
    ),
    "a template for a condition": (
        steps("a: {set: '1', when: 'is ${input.x} true'}"),
        "line 5, column 24: steps.a.when: gives STRING, must be true or false",
    ),
    "block": (
        steps("a:\n  set: |\n    1 +\n      nope"),
        "line 8, column 9: steps.a.set: undeclared reference to 'nope'",
    ),
    "reserved": (
        steps("for: {set: '1'}"),
        "line 5, column 3: steps.for: the name 'for' is reserved",
    ),
    "reserved by us": (steps("input: {set: '1'}"), "the name 'input' is reserved"),
    "reserved word of failures": (steps("continue: {set: '1'}"), "the name 'continue' is reserved"),
    "reserved variable": (
        steps("a: {for_each: {in: '[1]', as: now}, set: '1'}"),
        "the name 'now' is reserved",
    ),
    "variable like a step": (
        steps("a: {for_each: {in: '[1]', as: b}, set: '1'}\nb: {set: '1'}"),
        "the step 'b' has this name",
    ),
    "name with a hyphen": (steps("a-b: {set: '1'}"), "'a-b' is not allowed: a name has letters"),
    "wildcard": (HEAD.replace("w\n", "'*'\n") + "steps: {a: {set: '1'}}", "'*' is not allowed"),
    "greater": (HEAD.replace("w\n", "'>'\n") + "steps: {a: {set: '1'}}", "'>' is not allowed"),
    "dot": (HEAD.replace("w\n", "a.b\n") + "steps: {a: {set: '1'}}", "'a.b' is not allowed"),
    "newline": (HEAD.replace("w\n", '"w\\n"\n') + "steps: {a: {set: '1'}}", "is not allowed"),
    "version with two dots": (
        HEAD.replace('"1"', '"1..2"') + "steps: {a: {set: '1'}}",
        "a version has letters",
    ),
    "version with a dot at its end": (
        HEAD.replace('"1"', '"1."') + "steps: {a: {set: '1'}}",
        "a version has letters",
    ),
    "version is a number": (
        HEAD.replace('"1"', "1.10") + "steps: {a: {set: '1'}}",
        'line 3, column 10: version: must be a text: write "1.1" in quotes',
    ),
    "dsl": (
        HEAD.replace("stock/1", "stock/2") + "steps: {a: {set: '1'}}",
        "must be 'penstock/1'",
    ),
    "no steps": (HEAD, "steps: is missing"),
    "empty steps": (f"{HEAD}steps: {{}}", "at least 1 item"),
    "schedule": (
        f"{HEAD}schedule: {{cron: '* * * *', timezone: Rom, catch_up: 8d}}\n"
        "steps: {a: {set: '1'}}",
        "schedule.timezone: there is no time zone 'Rom'",
    ),
    "input of the schedule": (
        f"{HEAD}input: {{required: [city]}}\nschedule: {{cron: '0 9 * * *'}}\n"
        "steps: {a: {set: '1'}}",
        "schedule.input.city: is missing",
    ),
    "key of exclusive": (
        f"{HEAD}exclusive: {{key: a.output}}\nsteps: {{a: {{set: '1'}}}}",
        "line 4, column 18: exclusive.key: undeclared reference to 'a.output'",
    ),
    "rounds without a bound": (
        steps("a: {repeat: {until: 'true'}, set: '1'}"),
        "steps.a.repeat.rounds: is missing",
    ),
    "two loops": (
        steps("a: {repeat: {until: 'true', rounds: 2}, for_each: {in: '[1]'}, set: '1'}"),
        "steps.a.repeat: a step has for_each or repeat",
    ),
    "variable of rounds like a step": (
        steps("a: {repeat: {until: 'true', rounds: 2}, set: '1'}\nlast: {set: '1'}"),
        "last is a variable of a step with repeat: rename the step 'last'",
    ),
    "rounds elsewhere": (steps("a: {set: last}"), "undeclared reference to 'last'"),
    "form": (
        steps("a: {approve: {title: '\"x\"', form: {properties: {n: {type: intger}}}}}"),
        "steps.a.approve.form.properties.n.type: ",
    ),
    "deciders": (
        steps("a: {approve: {title: '\"x\"', need: 2, deciders: {users: [ada], role: [x]}}}"),
        "there is no field 'role': did you mean \"roles\"?",
    ),
    "too few deciders": (
        steps("a: {approve: {title: '\"x\"', need: 2, deciders: {users: [ada]}}}"),
        "steps.a.approve.need: need is 2, and only 1 may decide",
    ),
    "duration": (steps("a: {wait: 5 parsecs}"), "'5 parsecs' is no duration"),
    "duration of zero": (steps("a: {wait: 0s}"), "must be longer than zero"),
    "wait that its run's record does not outlive": (steps("a: {wait: 30d}"), "at most 28 days"),
    "timeout of years": (steps("a: {set: '1', timeout: 400d}"), "at most 28 days"),
    "retry of set": (steps("a: {set: '1', retry: {attempts: 3}}"), "a step with set has no retry"),
    "attempts": (
        steps("a: {run: {agent: x, message: '\"x\"'}, retry: {attempts: 0}}"),
        "greater than or equal to 1",
    ),
    "limit": (
        steps("a: {for_each: {in: '[1]', limit: 1000}, set: '1'}"),
        "less than or equal to 100",
    ),
    "agent": (
        steps("a: {run: {agent: 'a b', message: '\"x\"'}}"),
        "'a b' is not allowed: an id has",
    ),
    "url": (steps("a: {call: {url: 'ftp://x'}}"), "a URL begins with"),
    "credentials in a url": (
        steps("a: {call: {url: 'https://ada:pass@example.com/x'}}"),
        "steps.a.call.url: the URL has a user or password; use `secret` instead",
    ),
    "body of a GET": (
        steps("a: {call: {url: 'https://x', method: GET, body: '1'}}"),
        "line 5, column 45: steps.a.call.body: a GET has no body",
    ),
    "method": (steps("a: {call: {url: 'https://x', method: get}}"), "must be 'POST', 'PUT'"),
    "header of our own": (
        steps("a: {call: {url: 'https://x', headers: {Webhook-Id: '\"x\"'}}}"),
        "line 5, column 42: steps.a.call.headers.Webhook-Id: the header Webhook-Id cannot be set",
    ),
    "secret in a header": (
        steps("a: {call: {url: 'https://x', headers: {Authorization: '\"x\"'}}}"),
        "give Authorization in `secret`, which is hidden",
    ),
    "header twice": (
        steps("a: {call: {url: 'https://x', headers: {X-A: '\"x\"', x-a: '\"x\"'}}}"),
        "steps.a.call.headers: a header is there twice",
    ),
    "expression in a header": (
        steps("a: {call: {url: 'https://x', headers: {X-A: '1', X-B: nope}}}"),
        "line 5, column 57: steps.a.call.headers.X-B: undeclared reference to 'nope'",
    ),
    "expression in a URL": (
        steps("a: {call: {url: 'https://x/${input.id}'}}"),
        "line 5, column 19: steps.a.call.url: the URL is a fixed text",
    ),
    "own output in a condition of rounds": (
        steps("a: {set: round, repeat: {until: 'a.output > 2', rounds: 3}}"),
        "undeclared reference to 'a.output': a step's output is `result` in output, and `last` in",
    ),
    "name of a parameter": (
        steps("a: {call: {url: 'https://x', query: {'a b': '1'}}}"),
        "the name of a parameter has no blank",
    ),
    "expected status": (
        steps("a: {call: {url: 'https://x', expect: [200, 99], body: nope}}"),
        "line 5, column 46: steps.a.call.expect.1: must be greater than or equal to 200",
    ),
    "beside an expected status": (
        steps("a: {call: {url: 'https://x', expect: [200, 99], body: nope}}"),
        "steps.a.call.body: undeclared reference to 'nope'",
    ),
    "fragment of a url": (
        steps("a: {call: {url: 'https://example.com/x#y'}}"),
        "the URL has a fragment",
    ),
    "event": (
        steps("a: {listen: {event: lifecycle.complete}}"),
        'did you mean "lifecycle.completed"?',
    ),
    "schema": (
        f"{HEAD}input: {{propertys: {{}}}}\nsteps: {{a: {{set: '1'}}}}",
        "line 4, column 20: input.propertys: the keyword 'propertys' is not supported",
    ),
    "schema of a list": (
        f"{HEAD}input: {{type: array}}\nsteps: {{a: {{set: '1'}}}}",
        "is an object",
    ),
    "reference": (
        f"{HEAD}input: {{$ref: 'http://127.0.0.1/x'}}\nsteps: {{a: {{set: '1'}}}}",
        "'$ref' is not supported",
    ),
    "key twice": (
        steps("a: {set: '1'}\na: {set: '2'}"),
        "line 6, column 3: steps.a: the key 'a' is here twice; it is in line 5, too",
    ),
    "no yaml": (steps("a: {set: '1'"), "the document is not YAML"),
    "tab": (f"{HEAD}steps:\n\ta: 1", "line 5, column 1: definition: the document is not YAML"),
    "tag": (steps("a: {set: !!python/object:os.system '1'}"), "tags are not allowed"),
    "plain tag": (steps("a: {set: !!str 1}"), "tags are not allowed"),
    "no anchor": (steps("a: *x"), "there is no anchor &x before this"),
    "two documents": (f"{steps('a: {set: x}')}---\nx: 1\n", "a file has one document"),
    "a list": ("[1]", "a definition is an object"),
    "nothing": ("", "the document is empty"),
    "null": ("null", "a definition is an object"),
    "a key that is a list": ("? [1]\n: 2", "a key must be a plain text"),
    "json with a key twice": (
        '{"dsl": "penstock/1", "dsl": "penstock/1"}',
        "the key 'dsl' is here twice",
    ),
    "control characters": ("a: \x00", "the document is not YAML"),
    "long expression": (steps(f"a: {{set: '{'1' * 2001}'}}"), "at most 2000 characters"),
    "empty expression": (steps("a: {set: ''}"), "steps.a.set: must not be empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_named(name: str) -> None:
    text, reason = BAD[name]
    found = told(text)
    assert any(reason in each for each in found), found
    assert all(each.startswith("line ") for each in found), "without a place"


def test_a_list_with_a_wrong_item_is_not_called_too_short() -> None:
    assert told(steps("a: {call: {url: 'https://x', expect: [2xx]}}")) == [
        "line 5, column 41: steps.a.call.expect.0: must be an integer"
    ]


# Twenty mistakes of all stages: keys, fields, types, steps, schemas, and expressions.
PLANTED = """\
dsl: penstock/2
name: a.b
version: 1.0
titel: x
input: {type: object, properties: {n: {type: intger}}}
steps:
  plan:
    run: {agent: a b, message: input.n + }
  plan: {run: {agent: x, message: '"x"'}}
  bad-name: {set: '1'}
  check:
    needs: [plan]
    run: {agent: x, message: paln.output.text, sesion: own}
  ask:
    needs: [chekc]
    approve: {show: 'check.output'}
    output: result.decison
    timeout: 5 parsecs
    on_failure: contineu
  both: {set: '1', wait: 5 s}
  each:
    for_each: {in: '"x"', limit: 1000}
    set: nobody.x
    retry: {attempts: 0}
  one: {needs: [two], when: '"yes"', set: two.output}
  two: {needs: [one], listen: {event: lifecycle.complete, where: event.x +}}
output: summery.output
"""
FOUND = [
    "line 1, column 6: dsl: must be 'penstock/1'",
    "line 2, column 7: name: 'a.b' is not allowed: a name has letters",
    'line 3, column 10: version: must be a text: write "1.0" in quotes',
    "line 4, column 1: titel: there is no field 'titel': did you mean \"title\"?",
    "line 5, column 46: input.properties.n.type: ",
    "line 9, column 3: steps.plan: the key 'plan' is here twice",
    "line 10, column 3: steps.bad-name: 'bad-name' is not allowed",
    "line 13, column 30: steps.check.run.message: undeclared reference to 'paln.output.text': "
    'did you mean "plan"?',
    "line 13, column 48: steps.check.run.sesion: there is no field 'sesion': "
    'did you mean "session"?',
    "line 15, column 13: steps.ask.needs.0: there is no step 'chekc': did you mean \"check\"?",
    "line 16, column 14: steps.ask.approve.title: is missing",
    "line 18, column 14: steps.ask.timeout: '5 parsecs' is no duration",
    "line 19, column 17: steps.ask.on_failure: there is no step 'contineu': "
    'did you mean "continue"?',
    "line 20, column 3: steps.both: a step has exactly one of",
    "line 20, column 26: steps.both.wait: '5 s' is no duration",
    "line 22, column 21: steps.each.for_each.in: gives STRING, must be a list",
    "line 22, column 34: steps.each.for_each.limit: must be less than or equal to 100",
    "line 23, column 10: steps.each.set: undeclared reference to 'nobody.x'",
    "line 24, column 5: steps.each.retry: a step with set has no retry",
    "line 24, column 23: steps.each.retry.attempts: must be greater than or equal to 1",
    "line 25, column 16: steps.one.needs: the steps need each other: one -> two -> one",
    "line 25, column 30: steps.one.when: gives STRING, must be true or false",
    "line 26, column 39: steps.two.listen.event: there is no event lifecycle.complete: "
    'did you mean "lifecycle.completed"?',
    "line 26, column 75: steps.two.listen.where: Syntax error: the expression ends too early",
    "line 27, column 9: output: undeclared reference to 'summery.output'",
]


def test_all_mistakes_of_a_document_are_named_in_one_pass_and_no_more() -> None:
    found = told(PLANTED)
    assert [line[: len(expected)] for line, expected in zip(found, FOUND, strict=True)] == FOUND


def test_no_reason_is_a_text_of_pydantic_or_of_the_parser() -> None:
    wrong: list[Any] = [
        None,
        1,
        1.5,
        True,
        "",
        "x" * 5000,
        [],
        [1],
        {},
        {"x": 1},
        "1 +",
        "(",
        "a b",
    ]
    step = {
        "run": {"agent": "x", "message": '""', "input": "1", "session": "own"},
        "approve": {
            **{"title": '""', "show": "1", "policy": "x", "need": 1, "form": {}},
            "deciders": {"users": ["x"]},
        },
        "call": {"url": "https://x.invalid", "body": "1", "secret": "x"},
        "for_each": {"in": "[]", "as": "x", "limit": 1},
        "repeat": {"until": "true", "rounds": 1},
        "retry": {"attempts": 1, "backoff": "1s", "factor": 1, "codes": ["x"]},
        **dict.fromkeys(("wait", "set", "needs", "when", "output", "timeout", "role"), "x"),
        **dict.fromkeys(("description", "on_failure", "dispatch", "listen", "workflow"), "x"),
    }
    whole = dict.fromkeys(
        ("dsl", "name", "version", "title", "topology_id", "input", "steps", "output"), "x"
    )
    head = {"dsl": "penstock/1", "name": "w", "version": "1", "steps": {"a": {"set": "1"}}}
    parts: dict[str, dict[str, Any]] = {
        "exclusive": {"key": '""', "when_busy": "queue"},
        "schedule": {"cron": "0 9 * * *", "timezone": "UTC", "catch_up": "1h", "input": {}},
    }
    names = (*whole, "concurrency", *parts)
    documents = [head | {name: value} for name in names for value in wrong]
    documents += [
        head | {name: field | {inner: value}}
        for name, field in parts.items()
        for inner in field
        for value in wrong
    ]
    for name, field in step.items():
        for value in wrong:
            documents.append(head | {"steps": {"a": {name: value}}})
            if isinstance(field, dict):
                documents += [
                    head | {"steps": {"a": {name: field | {inner: value}}}} for inner in field
                ]
    for document in documents:
        try:
            load_value(document)
        except InvalidDefinition as error:
            for problem in error.problems:
                assert not re.search(
                    r"[Ii]nput should|should |Value error|valid (?:string|integer|dictionary)"
                    r"|<EOF>|IDENTIFIER|NUM_|expecting|mismatched|extraneous|INVALID_ARGUMENT",
                    problem.reason,
                ), (document, problem)


TYPED = """input:
  type: object
  properties:
    n: {type: integer}
    x: {type: number}
    maybe: {type: [number, "null"]}
    names: {type: array, items: {type: string}}
    inner: {type: object, properties: {x: {type: number}}}
"""


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("run: {agent: x, message: input.n}", "run.message: gives INT, must be a text"),
        ("run: {agent: x, message: 'input.names[0] + input.n'}", "applied to '(string, int)'"),
        ("set: input.x * 2", "'(double, int)'; write an integer as a double, as in 2.0"),
        ("set: input.n * 1.5", "'(int, double)'; write an integer as a double"),
        ("set: input.inner.x + 'a'", "applied to '(double, string)'"),
        ("set: input.x > 1 && input.x * 2 == input.x", "applied to '(double, int)'"),
        ("set: 'input.x == null'", "applied to '(double, null_type)'"),
        ("{wait: 1s, when: input.x}", "when: gives DOUBLE, must be true or false"),
        ("for_each: {in: input.n}\n  set: item", "for_each.in: gives INT, must be a list"),
    ],
)
def test_an_operation_that_the_types_of_the_input_do_not_have_is_a_mistake(
    text: str, mistake: str
) -> None:
    body = text if text.startswith("{") else f"\n    {text}".replace("\n  set", "\n    set")
    [found] = told(f"{HEAD}{TYPED}steps:\n  a: {body}\n")
    assert mistake in found


SCALED = "steps:\n  scaled: {set: double(input.n) * 1.5}\n"


@pytest.mark.parametrize(
    ("step", "mistake"),
    [
        ("{needs: [scaled], wait: 1s, when: scaled.output}", "when: gives DOUBLE, must be true"),
        (
            "{needs: [scaled], set: '\"Go with \" + scaled.output'}",
            "applied to '(string, double)'",
        ),
        ("{needs: [scaled], set: scaled.output * 2}", "applied to '(double, int)'"),
    ],
)
def test_an_operation_that_the_type_of_an_output_does_not_have_is_a_mistake(
    step: str, mistake: str
) -> None:
    # The step that reads the output may stand before the step that makes it.
    for body in (f"{SCALED}  a: {step}\n", SCALED.replace("\n", f"\n  a: {step}\n", 1)):
        [found] = told(f"{HEAD}{TYPED}{body}")
        assert mistake in found


@pytest.mark.parametrize(
    "scaled",
    ["when: input.n > 1", "on_failure: continue", "needs: [maybe]", "for_each: {in: input.names}"],
)
def test_an_output_that_may_be_null_or_a_list_has_no_type(scaled: str) -> None:
    maybe = "  maybe: {set: '1', when: input.n > 2}\n"
    null = "  a: {needs: [scaled], set: 'scaled.output == null'}\n"
    body = SCALED.replace("{set", f"{{{scaled}, set") + maybe + null
    load(f"{HEAD}{TYPED}{body}".encode())


@pytest.mark.parametrize(
    ("first", "read", "mistake"),
    [
        ("approve: {title: '\"?\"'}", "decison", "'decison': did you mean \"decision\"?"),
        ("run: {agent: x, message: '\"?\"'}", "decision", "(text, data, status, run_id, usage)"),
        ("wait: 1s", "txt", 'did you mean "text"?'),
    ],
)
def test_a_field_that_an_output_cannot_have_is_a_mistake(
    first: str, read: str, mistake: str
) -> None:
    [found] = told(steps(f"ok: {{{first}}}\na: {{needs: [ok], set: ok.output.{read}}}"))
    assert "ok.output has no '" in found
    assert mistake in found


@pytest.mark.parametrize(
    "first",
    [
        "approve: {title: '\"?\"'}, output: '{\"decison\": 1}'",
        "set: '{\"decison\": 1}'",
        "call: {url: 'https://x.invalid'}, output: result.data",
    ],
)
def test_an_output_of_its_own_may_have_any_fields(first: str) -> None:
    load(steps(f"ok: {{{first}}}\na: {{needs: [ok], set: ok.output.decison}}").encode())


@pytest.mark.parametrize(
    "text",
    [
        "input.x * 1.5",
        "input.n + 1",
        "input.x > 1 && input.n == 2.0 && input.x in [1, 2]",
        "has(input.x) ? input.x : 0",
        "has(input.inner.x) && input.inner.x > 1",
        "input.maybe == null ? 0 : input.maybe",
        "input['x'] == 'a'",
        "size(input.names) + input.n",
        "input.names.map(each, each + '!')",
        "input.other * 2",
    ],
)
def test_operations_that_the_types_of_the_input_have_are_compiled(text: str) -> None:
    load(f'{HEAD}{TYPED}steps:\n  a: {{set: "{text}"}}\n'.encode())


def test_a_stored_definition_is_compiled_without_the_types_of_its_input() -> None:
    text = f"{HEAD}{TYPED}steps:\n  a: {{set: input.x * 2}}\n"
    compile(Definition.model_validate(yaml.safe_load(text)))


def test_all_mistakes_are_named_in_the_order_of_the_document() -> None:
    found = told(steps("a: {set: nope}\nb: {set: nope}\nc: {set: '1', when: '1'}"))
    assert [each.split(":")[0] for each in found] == [
        "line 5, column 12",
        "line 6, column 12",
        "line 7, column 24",
    ]


def test_no_and_dates_are_texts_and_numbers_are_numbers() -> None:
    value = read_document(
        b"{a: no, b: 2026-11-22, c: 1, d: 1.5, e: 0x1f, f: on, g: ~, h: 1_0}"
    ).value
    assert value == {
        **{"a": "no", "b": "2026-11-22", "c": 1, "d": 1.5, "e": "0x1f", "f": "on", "g": None},
        "h": "1_0",
    }


def test_an_alias_repeats_a_value() -> None:
    text = steps(
        "a: {run: {agent: x, message: '\"x\"'}, retry: &often {attempts: 3}}\n"
        "b: {run: {agent: x, message: '\"x\"'}, retry: *often}"
    )
    assert load(text.encode()).workflow.definition.steps["b"].retry is not None


def test_a_mistake_in_an_alias_is_where_the_alias_is() -> None:
    text = steps("a: &it {set: '1', on_failure: nope}\nb: *it")
    assert [each[:17] for each in told(text)] == ["line 5, column 33", "line 6, column 6:"]


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for n in range(1, 12):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bomb().encode(), "more than 20000 values"),
        (b"a: &a [*a]", "there is no anchor &a before this"),
        (b"a: &a {b: *a}", "there is no anchor &a before this"),
        (b"[" * 200_000, "nested more than 40 deep"),
        (b"{" * 200_000, "a key must be a plain text"),
        (b'{"a":' * 40_000 + b"1" + b"}" * 40_000, "nested more than 40 deep"),
        (b"- " * 100_000, "nested more than 40 deep"),
        (b"? " * 100_000, "a key must be a plain text"),
        (b"x" * 300_000, "more than 262144 bytes"),
        (b"[" + b"1," * 100_000 + b"1]", "more than 20000 values"),
        (b"a: \xff", "not UTF-8"),
        (b"\n".join(b"k%d: 1" % n for n in range(20_001)), "more than 20000 values"),
        (b"!!python/object/apply:os.system ['true']", "tags are not allowed"),
        (b"&a " * 50_000, "not YAML"),
        (b"'" + b"''" * 100_000, "not YAML"),
        (b'"\\U00110000"', "not YAML"),
        (b"%YAML 9.9\n--- 1", "not YAML"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_a_bomb_is_refused_quickly(content: bytes, reason: str) -> None:
    begin = time.process_time()
    with pytest.raises(InvalidDefinition, match=reason):
        load(content)
    assert time.process_time() - begin < 2


def test_a_large_definition_is_compiled_quickly() -> None:
    many = {
        f"s{n}": {
            "needs": [f"s{before}" for before in range(max(0, n - 100), n)],
            "run": {"agent": "x", "message": f'"{"x" * 150}" + string(now)'},
            "when": "true",
            "output": "result.data",
        }
        for n in range(200)
    }
    value = {"dsl": "penstock/1", "name": "w", "version": "1", "steps": many}
    begin = time.process_time()
    load(json.dumps(value).encode())
    assert time.process_time() - begin < 4
    many["one_more"] = {"set": "1"}
    with pytest.raises(InvalidDefinition, match="at most 200 items"):
        load_value(value)


def test_unknown_agents_and_workflows_are_named() -> None:
    workflow = load(
        steps(
            "a: {run: {agent: lintr, message: '\"x\"'}}\n"
            "b: {workflow: {workflow: diagnosi}}\n"
            "c: {workflow: {workflow: diagnosis, version: '9'}}\n"
            "d: {workflow: {workflow: w}}"
        ).encode()
    ).workflow
    found = [
        each.reason for each in unknown_references(workflow, ["linter"], {"diagnosis": ["1", "2"]})
    ]
    assert found == [
        'there is no agent lintr: did you mean "linter"?',
        'there is no workflow diagnosi: did you mean "diagnosis"?',
        "the workflow diagnosis has no version 9",
    ]
    assert list(unknown_references(workflow, None, None)) == []


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.booleans())
@settings(max_examples=200, deadline=None)
def test_json_is_read_as_json(value: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent="\t")
    if not ascii_only and any(not char.isprintable() for char in text if char not in "\n\t"):
        return  # YAML has no control characters
    assert read_document(text.encode()).value == value


@given(json_values)
@settings(max_examples=200, deadline=None)
def test_what_is_no_definition_is_refused(value: Any) -> None:
    for content in (json.dumps(value), yaml.safe_dump(value)):
        with pytest.raises(InvalidDefinition):
            load(content.encode())


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each object and list in a value with each of its keys, the outer ones last."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        if isinstance(value[key], dict | list):
            yield from places(value[key])
        yield value, key


@st.composite
def nearly_right(draw: st.DrawFn) -> Any:
    """Draw a definition of the examples in which some keys and values are wrong."""
    value = copy.deepcopy(draw(st.sampled_from(VALUES)))
    for place, key in draw(st.lists(st.sampled_from(list(places(value))), max_size=9)):
        if isinstance(place, list) or key not in place or draw(st.booleans()):
            place[key] = draw(json_values)
        else:
            place[draw(st.sampled_from(FIELDS) | st.text(max_size=3))] = place.pop(key)
    return value


@given(nearly_right())
@settings(max_examples=100, deadline=None)
def test_whatever_is_wrong_in_a_definition_is_a_mistake_with_its_place(value: Any) -> None:
    try:
        load_value(value)
        mistakes: tuple[Problem, ...] = ()
    except InvalidDefinition as error:
        mistakes = error.problems
    assert len(set(mistakes)) == len(mistakes)


def test_a_wrong_key_may_have_wrong_fields_inside() -> None:
    found = told(f"{HEAD}steps:\n  'a b': {{typo: 1, retry: {{typo: 1}}}}\n")
    assert [each.split(": ")[1] for each in found][:1] == ["steps.a b"]
    assert len(found) == 4


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode()))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_refused_with_a_reason(content: bytes) -> None:
    with pytest.raises(InvalidDefinition):
        load(content)


def test_a_duration_ends_before_the_record_of_its_run_expires() -> None:
    assert seconds("28d") == MAX_DURATION_S < Retention().runs_max_age_s
