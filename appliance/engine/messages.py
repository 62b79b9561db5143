"""The declared structs that cross between host and engine. Nothing else does; nothing is pickled.

Host → engine: Load, Unload, Run, Cancel, Ping, Check, Shrink, Stop. Engine → host: Hello, Progress, Loaded, Done,
Result, Chunk, End, Failed, Pong, Checked, Unfit. Tensor bytes follow a message in the order in which its
``TensorMeta`` are listed.
"""

from collections.abc import Iterable, Sequence

import msgspec

from appliance.models.spec import ModelConfig, ModelSpec, TensorSpec
from appliance.models.tensors import Buffer, Tensor


class TensorMeta(msgspec.Struct, frozen=True, array_like=True):
    """A tensor without its bytes, of which ``nbytes`` follow in the frame's payload."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all messages: the tag in front tells them apart."""


class CostPoint(msgspec.Struct, frozen=True, array_like=True):
    """What a run of ``batch`` items took at its peak, in bytes. ``bucket``: the shapes of the inputs without their
    batch axis (with it, where the model has none), in the model's order."""

    bucket: tuple[tuple[int, ...], ...]
    batch: int
    size: int


class Known(msgspec.Struct, frozen=True):
    """What an earlier warm-up of the same files with the same runtime found out: see ``Loaded`` and ``ModelSpec``."""

    device: str
    max_batch: int
    costs: tuple[CostPoint, ...]
    notes: tuple[str, ...] = ()
    good_batch: int = 0
    providers: tuple[str, ...] = ()


class Load(Message):
    """Load and warm up one model version; answered by Loaded or Failed.

    ``handle`` is chosen by the host, names the loaded copy in later messages and is never used again.
    ``root``: the folder outside of which nothing may be read. ``device``: the server's policy (``auto``, ``cpu``,
    ``cuda``, ``cuda:N``). ``max_batch``: the server's limit for merged runs. ``declared_*``: what a foreign config
    file declares (checked against the file). ``known``: need not be measured and proved again.
    ``memory_limit``: the most bytes of a GPU that the runtime's allocator may take. ``trusted``: machine code in
    the model's files may run.
    """

    handle: int
    model: str
    version: str
    path: str
    root: str
    backend: str
    device: str
    config: ModelConfig
    threads: int
    max_batch: int
    labels: tuple[str, ...] = ()
    declared_inputs: tuple[TensorSpec, ...] = ()
    declared_outputs: tuple[TensorSpec, ...] = ()
    declared_max_batch: int | None = None
    known: Known | None = None
    memory_limit: int | None = None
    trusted: bool = False


class Unload(Message):
    """Let a loaded model go once its runs have ended; answered by Done."""

    handle: int


class Run(Message):
    """Run one batch. ``items[i]`` are the inputs of item i; ``outputs`` the names wanted, in order.

    ``stream``: answered by Chunk … End instead of one Result.
    """

    id: int
    handle: int
    items: tuple[tuple[TensorMeta, ...], ...]
    outputs: tuple[str, ...]
    stream: bool = False


class Cancel(Message):
    """Nobody wants run ``id`` any more; it ends early where the backend can (answered by Failed cancelled)."""

    id: int


class Ping(Message):
    """Heartbeat; answered by Pong from the reading thread, never by a lane."""

    n: int


class Check(Message):
    """Run the canary of every loaded copy; answered by Checked, or by Unfit."""

    n: int


class Shrink(Message):
    """Give back memory that is only kept for later runs: another engine of the device needs it. Not answered."""


class Stop(Message):
    """End the process at once: the host has waited for what it wanted to wait for."""


class Hello(Message):
    """First message of an engine: who it is and what it could use. ``runtimes``: package → version."""

    pid: int
    runtimes: dict[str, str]
    providers: tuple[str, ...]


class Progress(Message):
    """What a load that takes long is doing, in a few words for a person."""

    handle: int
    words: str


class DeviceMemory(msgspec.Struct, frozen=True, array_like=True):
    """A device's memory in bytes; ``ours``: what the engine process holds of it."""

    total: int
    free: int
    ours: int


class Loaded(Message):
    """``load_ms`` and ``warmup_ms`` as measured; ``memory_bytes``: what the weights took of the device; ``costs``:
    what runs took beyond that, measured at warm-up, which also left ``warmup_notes`` and ``held_bytes`` of the device
    taken (arenas keep what they took)."""

    handle: int
    spec: ModelSpec
    load_ms: float
    warmup_ms: float
    memory_bytes: int
    costs: tuple[CostPoint, ...] = ()
    warmup_notes: tuple[str, ...] = ()
    held_bytes: int = 0


class Done(Message):
    """The model is gone."""

    handle: int


class ItemFailure(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """Why one item of a batch has no answer."""

    code: str
    message: str


class ItemOutputs(msgspec.Struct, frozen=True, array_like=True, tag="outputs"):
    """One item's outputs, in the order asked for."""

    tensors: tuple[TensorMeta, ...]


class Result(Message):
    """A batch's answer: one entry an item. ``run_ns``: time in the backend; ``total_ns``: in the engine;
    ``ran_out``: the batch ran out of memory, and its items were run one by one."""

    id: int
    items: tuple[ItemOutputs | ItemFailure, ...]
    run_ns: int
    total_ns: int
    ran_out: bool = False


class Chunk(Message):
    """A part of a stream's answer."""

    id: int
    tensors: tuple[TensorMeta, ...]


class End(Message):
    """A stream is complete."""

    id: int
    run_ns: int


class Failed(Message):
    """A Load (``kind="load"``, id = handle) or Run (``kind="run"``) failed as a whole."""

    kind: str
    id: int
    code: str
    message: str


class Pong(Message):
    """``rss``: bytes of memory the engine process holds; ``busy``: runs now in its lanes; ``memory``: of each
    device that tells."""

    n: int
    rss: int
    busy: int
    memory: dict[str, DeviceMemory] = {}


class Checked(Message):
    """Check ``n`` is through, and every canary gave what it gave at warm-up. ``models``: how many have one."""

    n: int
    models: int


class Unfit(Message):
    """This engine gives wrong answers, or none any more: nothing that it says from now on counts, it is to be
    killed."""

    reason: str


ToEngine = Load | Unload | Run | Cancel | Ping | Check | Shrink | Stop
ToHost = Hello | Progress | Loaded | Done | Result | Chunk | End | Failed | Pong | Checked | Unfit


def describe(tensors: Iterable[Tensor]) -> tuple[TensorMeta, ...]:
    """The metas of tensors whose bytes are sent behind the message, in the same order."""
    return tuple(TensorMeta(t.name, t.datatype, t.shape, t.nbytes) for t in tensors)


def buffers(tensors: Iterable[Tensor]) -> list[Buffer]:
    """The bytes to send behind a message, in order."""
    return [t.data for t in tensors if t.nbytes]


def attach(metas: Sequence[TensorMeta], payload: memoryview, at: int = 0) -> tuple[tuple[Tensor, ...], int]:
    """Tensors of ``metas`` as views into ``payload`` from byte ``at``, and the byte after the last.

    Raises ValueError when the payload is too short.
    """
    found = []
    for meta in metas:
        end = at + meta.nbytes
        if end > payload.nbytes:
            raise ValueError("a frame's payload is shorter than its tensors")
        found.append(Tensor(meta.name, meta.datatype, meta.shape, payload[at:end]))
        at = end
    return tuple(found), at
