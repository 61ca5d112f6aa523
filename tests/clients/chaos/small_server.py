"""A small agent server for the tests of `chaos`: `small_server.py PORT FOLDER FAULT`.

It speaks the two requests of Penstock's API that `chaos` uses, and plays the script of the scripted
agents. It writes each event to a file before it shows it, so it can be killed. If it was killed in
a call, it fails the run, since it does not know whether the effect has happened. FAULT makes it
misbehave. It uses the standard library alone and no site-packages, so that it starts at once.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PORT, FOLDER, FAULT = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
COUNTER = environ["PENSTOCK_CHAOS_COUNTER"]
WORDS = 4
ENDS = ("lifecycle.completed", "lifecycle.failed")
WAS_KILLED = any(FOLDER.glob("*.jsonl"))


class Journal:
    """The events of one run, each a line of a file."""

    def __init__(self, run_id: str) -> None:
        self.path = FOLDER / f"{run_id}.jsonl"
        self.events: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        if self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            self.events = [json.loads(line) for line in lines if line.endswith("\n")]

    def add(self, kind: str, **data: str) -> None:
        with self.changed, self.path.open("a") as file:
            event = {"run_id": self.path.stem, "type": kind, "data": data}
            file.write(json.dumps(event) + "\n")
            file.flush()
            self.events.append(event)
            self.changed.notify_all()

    def count(self, kind: str) -> int:
        return sum(event["type"] == kind for event in self.events)


def call(run: str, number: int) -> None:
    request = urllib.request.Request(f"{COUNTER}/effects/{run}/{number}", data=b"", method="POST")
    urllib.request.urlopen(request, timeout=30).close()


def play(journal: Journal) -> None:
    """Carry out a run, from the place that its events show."""
    if journal.events[-1]["type"] in ENDS:
        return
    if WAS_KILLED and FAULT == "endless" and journal.count("llm.stream"):
        return
    _, run, calls = journal.events[0]["data"]["message"].split()
    in_call = journal.count("call") > journal.count("result")
    if in_call and FAULT not in ("doubles", "pretends"):
        journal.add("lifecycle.failed")
        return
    if in_call:
        if FAULT == "doubles":
            call(run, journal.count("result"))
        journal.add("result")
    # A run without calls waits for the kill, so that every kill meets it among its words. The calm
    # ones are slow, so that the kill comes late enough on a busy machine.
    waits = calls == "0" and not WAS_KILLED and "calm" not in run
    pause_s = 0.3 if calls == "0" and "calm" in run else 0.03
    was_left = WAS_KILLED and journal.count("llm.stream")
    while True:
        turn = journal.count("result")
        while journal.count("llm.stream") < WORDS * (turn + 1):
            time.sleep(60 if waits and journal.count("llm.stream") == 2 else pause_s)
            word = f"#{journal.count('llm.stream')} "
            journal.add("llm.stream", content=word * (2 if FAULT == "mumbles" else 1))
        if turn == int(calls):
            journal.add("lifecycle.completed")
            return
        journal.add("call")
        if not (was_left and FAULT == "pretends"):
            call(run, turn)
        journal.add("result")


journals: dict[str, Journal] = {}
keys: dict[str, str] = {}
lock = threading.Lock()


def begin(journal: Journal) -> None:
    threading.Thread(target=play, args=(journal,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers["idempotency-key"]
        with lock:
            run_id = keys.get(key)
            if run_id is None:
                run_id = keys[key] = str(uuid.uuid4())
                journal = journals[run_id] = Journal(run_id)
                journal.add("start", message=body["message"], key=key)
                begin(journal)
        self.answer(200, "application/json")
        self.wfile.write(json.dumps({"run_id": run_id}).encode())

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.split("/")
        if len(parts) < 4:
            self.answer(200, "text/plain")
            return
        journal = journals.get(parts[3])
        if journal is None:
            self.answer(404, "text/plain")
            return
        self.answer(200, "text/event-stream")
        cursor = self.headers.get("last-event-id")
        first = int(cursor) + 1 if cursor else 0
        if FAULT == "babbles":
            self.wfile.write(b"data: {}\n\n")
        misses = FAULT == "forgets" and journal.events[-1]["type"] in ENDS
        if WAS_KILLED and cursor:
            misses = FAULT == "loses"
            if FAULT == "repeats":
                words = [n for n in range(first) if journal.events[n]["type"] == "llm.stream"]
                self.show(words[-1], journal)
        for number in range(first, 1_000):
            with journal.changed:
                while len(journal.events) <= number:
                    journal.changed.wait()
            kind = journal.events[number]["type"]
            if misses and kind == "llm.stream":
                misses = False
                continue
            self.show(number, journal)
            if kind in ENDS:
                return

    def show(self, number: int, journal: Journal) -> None:
        event = journal.events[number]
        text = f"event: {event['type']}\ndata: {json.dumps(event)}\nid: {number}\n\n"
        self.wfile.write(text.encode())

    def answer(self, status: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.end_headers()


if WAS_KILLED and FAULT == "dies":
    sys.exit("this server starts once")
for path in FOLDER.glob("*.jsonl") if FAULT != "has no memory" else ():
    left = Journal(path.stem)
    if left.events:
        journals[path.stem], keys[left.events[0]["data"]["key"]] = left, path.stem
        begin(left)
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
