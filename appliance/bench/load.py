"""The clients: connections that stay open, each with its next request when its answer is there."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from appliance.bench.payload import Payload

ANSWER_S = 300.0
"""Longest wait for one answer: the appliance's own deadlines end a request long before."""

_WINDOW_MORE_S = 60.0  # how much longer than asked for a window may be, for a model that takes seconds
_ENDING_S = 30.0
_SETTLE_S = 0.5
_AFTER_ERROR_S = 0.05  # who is refused at once would ask again at once, and measure nothing but that
_LOOK_S = 0.02
_KEPT = 64 * 1024  # of the body of an answer that is an error


class Answer(NamedTuple):
    """``ended``: on ``time.perf_counter``. ``queued_ms``: from ``Server-Timing``. ``code``: empty for a good one."""

    ended: float
    seconds: float
    queued_ms: float
    code: str
    words: str = ""


class Window(NamedTuple):
    """What ended within a time of steady load. ``cpu``: share of one core that this process used of it."""

    seconds: float
    answers: list[Answer]
    cpu: float


class _Connection(asyncio.Protocol):
    """One HTTP/1.1 connection with one request at a time. The response parser calls its ``on_`` methods."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[tuple[int, str, bytes]] | None = None
        self._timing = ""
        self._body = b""
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its type
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed before the answer was there"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self.connection_lost(ConnectionError(f"no HTTP answer: {error}"))

    def on_message_begin(self) -> None:
        self._timing, self._body = "", b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server-timing":
            self._timing = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != 200 and len(self._body) < _KEPT:
            self._body += body

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), self._timing, self._body))

    async def ask(self, request: bytes) -> tuple[int, str, bytes]:
        """(status, Server-Timing, the body of an error). OSError or TimeoutError where there is no answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        async with asyncio.timeout(ANSWER_S):
            return await self._answer

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.close()


class Load:
    """Clients of one address that send one payload."""

    def __init__(self, url: str, headers: Mapping[str, str], payload: Payload) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        fields = {"Host": parts.netloc, **headers, **payload.headers}
        head = f"POST {payload.path} HTTP/1.1\r\n" + "".join(f"{name}: {text}\r\n" for name, text in fields.items())
        self._requests = [
            f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body for body in payload.bodies
        ]

    async def once(self) -> Answer:
        """One request on a connection of its own."""
        connection = await self._connected(None)
        if isinstance(connection, Answer):
            return connection
        try:
            return await self._timed(connection, self._requests[0])
        finally:
            connection.close()

    async def window(self, clients: int, seconds: float, tick: Callable[[float], None]) -> Window:
        """Steady load of so many clients: what ended within ``seconds``.

        The window opens when each client has had an answer, and stays open (for a minute more at most) until there
        are as many answers as clients, three at least. ``tick`` is called now and then with the share of it that is
        over.
        """
        answers: list[Answer] = []
        over = asyncio.Event()
        tasks = [asyncio.create_task(self._client(number, answers, over)) for number in range(clients)]
        try:
            begun = time.perf_counter()
            while (  # noqa: ASYNC110 - it waits for the time too, and is no load beside what is measured
                len(answers) < clients and not _waited(begun, ANSWER_S)
            ) or not _waited(begun, min(_SETTLE_S, seconds)):
                await asyncio.sleep(_LOOK_S)
            first, cpu, started = len(answers), time.process_time(), time.perf_counter()
            enough = first + max(clients, 3)
            while not _waited(started, seconds) or (
                len(answers) < enough and not _waited(started, seconds + _WINDOW_MORE_S)
            ):
                await asyncio.sleep(_LOOK_S)
                tick(min(1.0, (time.perf_counter() - started) / seconds))
            took, used, last = time.perf_counter() - started, time.process_time() - cpu, len(answers)
        finally:
            over.set()
            _, late = await asyncio.wait(tasks, timeout=_ENDING_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Window(took, answers[first:last], used / took)

    async def _client(self, number: int, answers: list[Answer], over: asyncio.Event) -> None:
        connection: _Connection | None = None
        try:
            while not over.is_set():
                found = await self._connected(connection)
                if isinstance(found, Answer):
                    answer = found
                else:
                    connection = found
                    answer = await self._timed(connection, self._requests[number % len(self._requests)])
                answers.append(answer)
                number += 1
                if answer.code:
                    await asyncio.sleep(_AFTER_ERROR_S)
        finally:
            if connection is not None:
                connection.close()

    async def _connected(self, connection: _Connection | None) -> "_Connection | Answer":
        """An open connection, a new one if need be; or the answer that stands for why there is none."""
        if connection is not None and connection.open:
            return connection
        started = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_S):
                _, made = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        except OSError as error:  # a TimeoutError is one too
            return _no_answer(started, error)
        return made

    async def _timed(self, connection: _Connection, request: bytes) -> Answer:
        started = time.perf_counter()
        try:
            status, timing, body = await connection.ask(request)
        except OSError as error:
            connection.close()
            return _no_answer(started, error)
        ended = time.perf_counter()
        code, words = error_of(status, body)
        return Answer(ended, ended - started, queued(timing), code, words)


def queued(timing: str) -> float:
    """Milliseconds in the queue, of a ``Server-Timing`` such as ``queue;dur=0.1, infer;dur=2``; 0 where absent."""
    for part in timing.split(","):
        name, _, duration = part.strip().partition(";dur=")
        if name == "queue":
            try:
                return float(duration)
            except ValueError:
                return 0.0
    return 0.0


def error_of(status: int, body: bytes) -> tuple[str, str]:
    """(code, words) of an answer, in either form of error body; both empty for a good one."""
    if status == 200:
        return "", ""
    try:
        told = json.loads(body)
        inner = told["error"]
        if isinstance(inner, str):
            return str(told["code"]), inner
        return str(inner["code"]), str(inner["message"])
    except (ValueError, KeyError, TypeError):
        return str(status), f"status {status}"


def _no_answer(started: float, error: Exception) -> Answer:
    ended = time.perf_counter()
    return Answer(ended, ended - started, 0.0, "no_answer", str(error) or type(error).__name__)


def _waited(since: float, seconds: float) -> bool:
    return time.perf_counter() - since >= seconds
