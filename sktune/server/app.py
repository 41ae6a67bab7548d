"""The application: addresses, and what keeps strangers out.

Only this machine can connect; every address begins with a secret token, so that neither another user of the machine nor
another page in the browser can read a study. Everything is read-only.
"""

import asyncio
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sktune.core.errors import SktuneError
from sktune.server.shelf import Shelf

POLL_S = 1.0
"""How often a study is looked at while somebody follows it."""
HEARTBEAT_S = 15.0
"""How often a follower hears something, so that both sides notice a lost connection."""
HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

Handler = Callable[[Request], Awaitable[Response]]
Answer = TypeVar("Answer")


class Pages:
    """Answers requests for the studies of a shelf.

    Attributes:
        token: the secret in every address.
        last_asked_s: when somebody asked last, or was still following, on the clock of ``time.monotonic``.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.token = secrets.token_urlsafe(24)
        self.last_asked_s = time.monotonic()
        self._shelf = shelf
        self._answers: dict[str, tuple[float, Any]] = {}
        self._finding: dict[str, asyncio.Lock] = {}
        self.followers = 0

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/{token}/", self._guarded(self._index), methods=["GET"]),
            Route("/{token}/study/{name:path}", self._guarded(self._study), methods=["GET"]),
            Route("/{token}/events/{name:path}", self._guarded(self._events), methods=["GET"]),
        ]
        return Starlette(routes=routes)

    def address(self, name: str | None = None) -> str:
        """Return the path of a study's page, or of the index."""
        return f"/{self.token}/" + ("" if name is None else f"study/{quote(name, safe='')}")

    def _guarded(self, answer: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            self.last_asked_s = time.monotonic()
            # Another host's name that resolves to this machine is how a page of that host would get in.
            host = re.sub(r":\d+$", "", request.headers.get("host", "").lower())
            known = secrets.compare_digest(request.path_params["token"].encode(), self.token.encode())
            if host not in HOSTS or not known:
                return PlainTextResponse("not found\n", 404, HEADERS)
            try:
                response = await answer(request)
            except SktuneError as failure:
                return PlainTextResponse(f"{failure}\n", 404, HEADERS)
            response.headers.update(HEADERS)
            return response

        return guarded

    async def _index(self, _request: Request) -> Response:
        return HTMLResponse(await self._shared("index", lambda: self._shelf.index(self.address), time.monotonic()))

    async def _study(self, request: Request) -> Response:
        name = request.path_params["name"]
        events = f"/{self.token}/events/{quote(name, safe='')}"
        return HTMLResponse(
            await self._shared(f"page {name}", lambda: self._shelf.page(name, events, self.address), time.monotonic())
        )

    async def _events(self, request: Request) -> Response:
        name = request.path_params["name"]
        first = await self._state(name)
        return StreamingResponse(self._changes(name, first), media_type="text/event-stream")

    async def _changes(self, name: str, state: object) -> AsyncIterator[str]:
        """Yield an event whenever the study has changed, and a comment now and then."""
        self.followers += 1
        try:
            yield "retry: 2000\n\n"
            heard_s = time.monotonic()
            while True:
                await asyncio.sleep(POLL_S)
                now = await self._state(name)
                self.last_asked_s = time.monotonic()
                if now != state:
                    state, heard_s = now, time.monotonic()
                    yield "event: change\ndata: study\n\n"
                elif time.monotonic() - heard_s > HEARTBEAT_S:
                    heard_s = time.monotonic()
                    yield ": still here\n\n"
        finally:
            self.followers -= 1

    async def _state(self, name: str) -> object:
        oldest_s = time.monotonic() - POLL_S / 2
        return await self._shared(f"state {name}", lambda: self._shelf.state(name), oldest_s)

    async def _shared(self, key: str, find: Callable[[], Answer], oldest_s: float) -> Answer:
        """Return what ``find`` returned when it was called at ``oldest_s`` or later, once for all who wait for it.

        A study may change faster than its page is made: those who wait get the next page, not one each.
        """
        async with self._finding.setdefault(key, asyncio.Lock()):
            began_s, answer = self._answers.get(key, (-math.inf, None))
            if began_s < oldest_s:
                began_s = time.monotonic()
                answer = await run_in_threadpool(find)
                self._answers[key] = began_s, answer
            return cast("Answer", answer)
