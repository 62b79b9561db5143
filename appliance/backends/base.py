"""The one protocol of this folder. A backend opens a model file; what it opened runs batches. It holds no policy:
queueing, batching and deadlines are the host's.

Arrays are numpy arrays in C order; BYTES are object arrays of ``bytes``, BF16 are ``uint16`` with the raw bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from appliance.models.spec import Generation, ModelConfig, TensorSpec
from appliance.models.tensors import Array

T = TypeVar("T")


class DeviceLost(Exception):
    """The device is gone, or in a state that only a new process cures.

    It is nobody's answer: the engine must end, and what it ran is run again. So it is not in the tree of errors, and
    what catches one of those does not catch it.
    """


def _quiet(words: str) -> None:
    """Nobody wants to know."""


class LoadRequest(msgspec.Struct, frozen=True):
    """What to open. ``device``: the server's policy (``auto``, ``cpu``, ``cuda``, ``cuda:N``); ``threads``: of one
    run on the CPU (0: the runtime's own choice). ``inputs``, ``outputs``: what settings declare of the tensors, for
    files that do not tell. Nothing outside ``root`` may be read. ``memory_limit``: the
    most bytes of a GPU that the runtime's allocator may take, None for no bound. ``max_batch``: the
    most items of a merged run, 0 where that is not known. ``progress``: told in a few words what takes long, from any
    thread. ``trusted``: the server's settings let machine code in the model's files run."""

    model: str
    path: Path
    root: Path
    device: str
    threads: int
    config: ModelConfig
    memory_limit: int | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch: int = 0
    progress: Callable[[str], None] = _quiet
    trusted: bool = False


class Opened(msgspec.Struct, frozen=True):
    """What the file and the runtime say once a model is open.

    ``device``: what really runs it; ``degraded``: why that is not what was asked for, or None; ``cpu_nodes``:
    nodes placed on the CPU although a GPU was asked for; ``batch_axis``: the file's tensors look as if the first
    axis were a batch (to be proven by the warm-up). ``generation``: of a language model; its session is only asked to
    ``stream``, from up to ``generation.streams`` threads at once.
    """

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    device: str
    providers: tuple[str, ...]
    degraded: str | None = None
    cpu_nodes: int = 0
    batch_axis: bool = False
    notes: tuple[str, ...] = ()
    generation: Generation | None = None


class Cancellation(Protocol):
    """Handle of one run: ``cancel()`` may be called from another thread, before, during or after it."""

    def cancel(self) -> None: ...


class Session(Protocol):
    """An open model. ``run`` may be called from several threads at once."""

    opened: Opened

    def cancellation(self) -> Cancellation:
        """A handle for one coming run."""
        ...

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        """The named outputs, in order. Raises InvalidInput, ModelError, InsufficientMemory, Cancelled,
        DeviceLost."""
        ...

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        """The named outputs in parts; a model that answers at once yields one part. Raises as ``run``."""
        ...

    def close(self) -> None:
        """Give everything back; no run is in flight or follows."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A session whose runtime keeps count of the device's memory, so that no reading of the device has to be had."""

    def metered(self, work: Callable[[], T]) -> tuple[T, int]:
        """``work()``, and the most bytes of the device that were taken during it beyond those taken before."""
        ...


@runtime_checkable
class Shrinkable(Protocol):
    """A backend that keeps memory of a device for later runs, and can give it back."""

    def shrink(self) -> None:
        """Give back what no model holds and no run uses. Never raises."""
        ...


class Backend(Protocol):
    """``name`` as in ``model.toml``; ``runtimes``: package → version of what it uses; ``providers``: what this
    runtime could use here."""

    name: str

    def runtimes(self) -> dict[str, str]: ...

    def providers(self) -> tuple[str, ...]: ...

    def memory(self) -> dict[str, tuple[int, int, int]]:
        """(total, free, ours) in bytes of devices that only this backend knows; real ones are read elsewhere."""
        ...

    def open(self, request: LoadRequest) -> Session:
        """Open a model file. Raises ModelLoadError (said in words), InsufficientMemory, DeviceLost."""
        ...
