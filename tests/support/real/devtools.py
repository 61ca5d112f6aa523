"""A page of headless Chromium that a test controls by the DevTools protocol: clicks and keys."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from support.drive.waiting import eventually, wait_for
from support.real import browser, servers

DEADLINE_S = 30.0
# The codes of the keys that are no letters.
CODES = {
    **{"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "PageUp": 33, "PageDown": 34, "End": 35},
    **{"Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40},
}


class PageReplaced(Exception):
    """The browser went to another page before it answered."""


class Page:
    """One page. `requested` are the URLs of all requests, `logged` the browser's complaints."""

    def __init__(self, socket: ClientConnection) -> None:
        self.requested: list[str] = []
        self.logged: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Stop listening."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command; return its result."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        answer = await asyncio.wait_for(self._answers[number], DEADLINE_S)
        if "Inspected target navigated" in str(answer.get("error")):
            raise PageReplaced(method)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    async def value(self, expression: str) -> Any:
        """Return the value of the expression in the page."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until the expression is true in the page, or in a page that replaces it."""

        async def found() -> Any:
            try:
                return await self.value(expression)
            except PageReplaced:
                return None

        return await eventually(found, DEADLINE_S, expression)

    async def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(await self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    async def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element, when it can be clicked."""
        found = json.dumps(selector)
        await self.until(
            f"document.querySelector({found})?.matches(':enabled, a, [role=option]') ?? false"
        )
        box = await self.value(
            f"(() => {{ const one = document.querySelector({found});"
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.send(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box
            )

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key of the keyboard, by its name or its letter."""
        text = {"text": {"Enter": "\r"}.get(key, key)} if key == "Enter" or len(key) == 1 else {}
        code = CODES.get(key) or ord(key.upper())
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    async def fill(self, selector: str, text: str) -> None:
        """Write into a field, in place of its text."""
        await self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            f"one.focus(); one.value = {json.dumps(text)}; }})()"
        )

    async def type(self, selector: str, text: str) -> None:
        """Write into a field, in place of its text, as a person does: with its events."""
        await self.value(f"document.querySelector({json.dumps(selector)}).select()")
        await self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.send("Input.insertText", text=text)

    async def choose(self, selector: str, value: str) -> None:
        """Choose a value of a list."""
        await self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            f"one.value = {json.dumps(value)};"
            "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    async def navigate(self, url: str) -> None:
        """Begin to open another page, which may leave for a third page by itself."""
        await self.send("Page.navigate", url=url)

    async def go(self, url: str) -> None:
        """Open another page in place of this one, and wait until it is complete."""
        await self.navigate(url)
        await self.until(
            f"location.href === {json.dumps(url)} && document.readyState === 'complete'"
        )

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the page as a PNG: the whole page, or the part in the window."""
        shot = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    async def scheme(self, *, dark: bool) -> None:
        """Set the preferred colour scheme of the user."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the window, in CSS pixels."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
            elif told["method"] == "Log.entryAdded":
                entry = told["params"]["entry"]
                self.logged.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
            elif told["method"] == "Runtime.exceptionThrown":
                self.logged.append(f"exception: {told['params']['exceptionDetails']}")


@asynccontextmanager
async def page_at(url: str) -> AsyncIterator[Page]:
    """Open this page in a profile of its own, which ends with the page."""
    async with pages_at([url]) as [page]:
        yield page


@asynccontextmanager
async def pages_at(urls: Sequence[str]) -> AsyncIterator[list[Page]]:
    """Open these pages, all of which are seen, in one new profile: they share its connections."""
    address = await asyncio.to_thread(_browser)
    host = address.split("/devtools/")[0]
    async with AsyncExitStack() as stack:
        controls = Page(await stack.enter_async_context(connect(address, max_size=None)))
        stack.push_async_callback(controls.close)
        context = (await controls.send("Target.createBrowserContext"))["browserContextId"]
        close = partial(controls.send, "Target.disposeBrowserContext", browserContextId=context)
        stack.push_async_callback(close)
        pages = []
        for url in urls:
            made = await controls.send(
                "Target.createTarget", url="about:blank", browserContextId=context
            )
            target = f"{host}/devtools/page/{made['targetId']}"
            page = Page(await stack.enter_async_context(connect(target, max_size=None)))
            stack.push_async_callback(page.close)
            for domain in ("Page", "Network", "Log", "Runtime"):
                await page.send(f"{domain}.enable")
            await page.send("Emulation.setScrollbarsHidden", hidden=True)
            await page.go(url)
            pages.append(page)
        yield pages


_runs: list[servers.SharedRun] = []  # the one run of this process


def share(run: servers.SharedRun) -> None:
    """Make all workers of the test run share one browser."""
    _runs[:] = [run]


def _browser() -> str:
    """Return the DevTools address of the browser of this test run.

    A browser takes seconds of CPU to start, so one serves all pages, each in a profile of its own.
    """
    run = _runs[0]
    return run.once("chromium", lambda folder: _address(folder, run.owner_pid))


def _address(folder: Path, owner_pid: int) -> str:
    browser.start("about:blank", folder, owner_pid, "--remote-debugging-port=0")
    port_file = folder / "profile" / "DevToolsActivePort"

    def address() -> str | None:
        # Chromium makes the file before it writes the port and the path into it.
        lines = port_file.read_text().splitlines() if port_file.exists() else []
        return f"ws://127.0.0.1:{lines[0]}{lines[1]}" if len(lines) > 1 else None

    return wait_for(address, DEADLINE_S, "Chromium tells its port")
