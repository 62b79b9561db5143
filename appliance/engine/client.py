"""The host's side of one engine process: messages out, futures and callbacks in. Lives in the server's loop."""

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from appliance.engine.channel import ChannelError, FrameProtocol
from appliance.engine.messages import (
    Cancel,
    Check,
    Checked,
    Chunk,
    DeviceMemory,
    Done,
    End,
    Failed,
    Hello,
    ItemFailure,
    Load,
    Loaded,
    Ping,
    Pong,
    Progress,
    Result,
    Run,
    Shrink,
    Stop,
    ToHost,
    Unfit,
    Unload,
    attach,
    buffers,
    describe,
)
from appliance.errors import ApplianceError, by_code
from appliance.models.tensors import Tensor

T = TypeVar("T")


class EngineDied(Exception):
    """The engine process is gone; whether a run that was in it took effect is not known."""


class RunResult(msgspec.Struct, frozen=True):
    """One entry an item: its outputs, or the error it has. Times in nanoseconds, measured by the engine;
    ``ran_out``: see ``Result``."""

    items: list[tuple[Tensor, ...] | ApplianceError]
    run_ns: int
    total_ns: int
    ran_out: bool = False


OnResult = Callable[[RunResult | ApplianceError | EngineDied], None]
OnChunk = Callable[[tuple[Tensor, ...]], None]
OnProgress = Callable[[str], None]


class EngineClient:
    """One connection to one engine. Every callback is called exactly once with an end: a result, an error or
    EngineDied.

    ``on_unfit(reason)``: the engine says that it is not to be trusted any more. Nothing it says afterwards is heard;
    it must be killed.
    """

    def __init__(self, on_close: Callable[[str], None], on_unfit: Callable[[str], None] | None = None) -> None:
        self._on_close = on_close
        self._on_unfit = on_unfit
        self._unfit = False
        self._protocol = FrameProtocol(self._message, self._closed)
        self._transport: asyncio.BaseTransport | None = None
        self._runs: dict[int, tuple[OnResult, OnChunk | None, int]] = {}  # the last: how many items
        self._loads: dict[int, asyncio.Future[Loaded]] = {}
        self._told: dict[int, OnProgress] = {}
        self._unloads: dict[int, asyncio.Future[None]] = {}
        self._checks: dict[int, asyncio.Future[int]] = {}
        self._ids = itertools.count(1)
        self._pings = itertools.count(1)
        self._dead: str | None = None
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.last_pong = asyncio.get_running_loop().time()
        self.memory_bytes: int | None = None
        self.on_memory: Callable[[dict[str, DeviceMemory], int], None] = lambda memory, busy: None

    @property
    def runtimes(self) -> dict[str, str]:
        """Package → version, as the engine's hello said."""
        return self.hello.result().runtimes if self.hello.done() and not self.hello.exception() else {}

    @property
    def loading(self) -> bool:
        """True while a load is in flight: a native load may hold up the engine's heartbeat."""
        return bool(self._loads)

    async def connect(self, sock: socket.socket) -> None:
        """Attach to the socket of a started engine."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        unix = sock.family == getattr(socket, "AF_UNIX", None)
        connect = loop.create_unix_connection if unix else loop.create_connection
        self._transport, _ = await connect(lambda: self._protocol, sock=sock)

    def run(
        self,
        handle: int,
        items: Sequence[Sequence[Tensor]],
        outputs: tuple[str, ...],
        on_result: OnResult,
        on_chunk: OnChunk | None = None,
    ) -> int:
        """Send one batch; returns its id (for ``cancel``). With ``on_chunk`` it is run as a stream.

        When it raises (a number that no frame can carry), nothing was sent and no callback is called.
        """
        run_id = next(self._ids)
        if self._dead is not None:
            asyncio.get_running_loop().call_soon(on_result, EngineDied(self._dead))
            return run_id
        metas = tuple(describe(item) for item in items)
        payload = [data for item in items for data in buffers(item)]
        self._protocol.write(Run(run_id, handle, metas, outputs, on_chunk is not None), payload)
        self._runs[run_id] = (on_result, on_chunk, len(items))
        return run_id

    def cancel(self, run_id: int) -> None:
        """Ask for an early end; the run's callback is still called."""
        if self._dead is None and run_id in self._runs:
            self._protocol.write(Cancel(run_id))

    async def load(self, message: Load, on_progress: OnProgress | None = None) -> Loaded:
        """``on_progress`` is told what takes long. Raises ApplianceError (why it cannot be loaded), EngineDied."""
        if self._dead is not None:
            raise EngineDied(self._dead)
        future: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self._loads[message.handle] = future
        if on_progress is not None:
            self._told[message.handle] = on_progress
        try:
            self._protocol.write(message)
            loaded = await future
        finally:
            self._told.pop(message.handle, None)
        if self._dead is not None:  # between its answer and now
            raise EngineDied(self._dead)
        return loaded

    async def unload(self, handle: int) -> None:
        """Returns when the model is gone, also when the engine died meanwhile."""
        if self._dead is not None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unloads[handle] = future
        self._protocol.write(Unload(handle))
        await future

    async def check(self) -> int:
        """Have the engine run the canary of every loaded model; how many have one. Raises EngineDied, also when a
        canary fails: ``on_unfit`` has heard why then."""
        if self._dead is not None:
            raise EngineDied(self._dead)
        number = next(self._ids)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._checks[number] = future
        self._protocol.write(Check(number))
        return await future

    def ping(self) -> None:
        """Send a heartbeat; ``last_pong`` is the loop's time of the newest answer."""
        if self._dead is None:
            self._protocol.write(Ping(next(self._pings)))

    def shrink(self) -> None:
        """Have the engine give back memory that it only keeps for later runs."""
        if self._dead is None:
            self._protocol.write(Shrink())

    def stop(self) -> None:
        """Ask the engine to end."""
        if self._dead is None:
            self._protocol.write(Stop())

    def close(self) -> None:
        """Drop the connection; the engine sees the end of the stream and ends."""
        if self._transport is not None:
            self._transport.close()

    def _message(self, message: ToHost, payload: memoryview) -> None:
        if self._unfit:
            return
        self.last_pong = asyncio.get_running_loop().time()
        match message:
            case Result():
                self._result(message, payload)
            case Chunk():
                stream = self._runs.get(message.id)
                if stream and stream[1]:
                    stream[1](attach(message.tensors, payload)[0])
            case End():
                entry = self._runs.pop(message.id, None)
                if entry:
                    entry[0](RunResult([()], message.run_ns, message.run_ns))
            case Pong():
                self.memory_bytes = message.rss
                self.on_memory(message.memory, message.busy)
            case Progress():
                if told := self._told.get(message.handle):
                    told(message.words)
            case Loaded():
                _resolve(self._loads.pop(message.handle, None), message)
            case Done():
                _resolve(self._unloads.pop(message.handle, None), None)
            case Checked():
                _resolve(self._checks.pop(message.n, None), message.models)
            case Hello():
                _resolve(self.hello, message)
            case Failed():
                self._failed(message)
            case Unfit():
                self._unfit = True
                if self._on_unfit is not None:
                    self._on_unfit(message.reason)

    def _result(self, message: Result, payload: memoryview) -> None:
        entry = self._runs.get(message.id)
        if entry is None:
            return
        # The run is known until its answer is whole: if it is not, the run hears of the connection's end instead.
        result = _attached(message, payload)
        if len(result.items) != entry[2]:
            raise ChannelError(f"{len(result.items)} answers to a run of {entry[2]} items")
        del self._runs[message.id]
        entry[0](result)

    def _failed(self, message: Failed) -> None:
        error = by_code(message.code, message.message)
        if message.kind == "load":
            future = self._loads.pop(message.id, None)
            if future is not None and not future.done():
                future.set_exception(error)
        elif entry := self._runs.pop(message.id, None):
            entry[0](error)

    def _closed(self, reason: str) -> None:
        self._dead = reason
        if not self.hello.done():
            self.hello.set_exception(EngineDied(reason))
            self.hello.exception()  # seen: nobody may be waiting any more
        waiters: list[asyncio.Future[Any]] = [*self._loads.values(), *self._checks.values()]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(EngineDied(reason))
        for unload in self._unloads.values():
            _resolve(unload, None)
        runs, self._runs = list(self._runs.values()), {}
        self._loads.clear()
        self._checks.clear()
        self._unloads.clear()
        # The supervisor learns of the death first, so that runs put back are not sent into the void again.
        self._on_close(reason)
        for on_result, *_ in runs:
            on_result(EngineDied(reason))


def _resolve(future: "asyncio.Future[T] | None", value: T) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _attached(message: Result, payload: memoryview) -> RunResult:
    items: list[tuple[Tensor, ...] | ApplianceError] = []
    at = 0
    for entry in message.items:
        if isinstance(entry, ItemFailure):
            items.append(by_code(entry.code, entry.message))
        else:
            tensors, at = attach(entry.tensors, payload, at)
            items.append(tensors)
    return RunResult(items, message.run_ns, message.total_ns, message.ran_out)
