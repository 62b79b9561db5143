"""Runs of a loaded PyTorch model: arrays in, arrays out, on the CPU or on a stream of a GPU."""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from appliance.backends import pytorch_device
from appliance.backends.base import Cancellation, Opened
from appliance.backends.pytorch_errors import run_error
from appliance.backends.pytorch_network import DTYPES, NAMES, Network
from appliance.errors import Cancelled, InvalidInput, ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.models.tensors import FLOATS, Array

T = TypeVar("T")

_of_thread = threading.local()


class _Run:
    """Cancellation of one run. PyTorch cannot end a run that goes on, so only one that has not begun is."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class PyTorchSession:
    """An open model on the CPU. Runs of several threads at once are apart: no run changes the model."""

    def __init__(self, network: Network, opened: Opened, threads: int, channels_last: bool = False) -> None:
        self._network: Network | None = network
        default_threads()  # before any run sets another number
        self._threads = threads
        self._channels_last = channels_last
        self.opened = opened
        self._at = {spec.name: i for i, spec in enumerate(opened.outputs)}

    def cancellation(self) -> _Run:
        return _Run()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        assert isinstance(handle, _Run)
        assert self._network is not None
        if handle.cancelled:
            raise Cancelled("cancelled before it ran")
        try:
            with torch.inference_mode():
                return self._run(self._network, inputs, [self._at[name] for name in outputs])
        except Exception as error:  # noqa: BLE001 - what a model raises may be of any type
            raise run_error(error, handle.cancelled) from None

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        yield self.run(inputs, outputs, handle)

    def close(self) -> None:
        self._network = None
        pytorch_device.give_back()

    def _run(self, network: Network, inputs: Mapping[str, Array], wanted: Sequence[int]) -> list[Array]:
        use_threads(self._threads)
        found = self._called(network, inputs)
        return [_array(found[i]) for i in wanted]

    def _called(self, network: Network, inputs: Mapping[str, Array]) -> list[Any]:
        """All outputs, as declared, on the device."""
        values = [
            self._value(spec, kind, inputs.get(spec.name), network)
            for spec, kind in zip(network.inputs, network.kinds, strict=True)
        ]
        found = network.call(values)
        return [
            _declared(spec, tensor, network.floats is not None)
            for spec, tensor in zip(network.outputs, found, strict=True)
        ]

    def _value(self, spec: TensorSpec, kind: str, array: Array | None, network: Network) -> Any:
        if array is None:
            raise InvalidInput(f"input '{spec.name}' is missing", param=spec.name)
        if kind != "tensor":
            return array.reshape(-1)[0].item()
        tensor = self._moved(_tensor(spec, array))
        if network.floats is not None and spec.datatype in FLOATS:
            tensor = tensor.to(network.floats)
        if self._channels_last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _moved(self, tensor: Any) -> Any:
        return tensor


class CudaSession(PyTorchSession):
    """An open model on a GPU: each run has a stream of its own, and waits for that one only."""

    def __init__(
        self,
        network: Network,
        opened: Opened,
        threads: int,
        channels_last: bool,
        index: int,
        streams: pytorch_device.Streams,
    ) -> None:
        super().__init__(network, opened, threads, channels_last)
        self._index = index
        self._streams = streams

    def metered(self, work: Callable[[], T]) -> tuple[T, int]:
        """The allocator's own count, exact to the byte; runs of other models meanwhile count with it."""
        before = pytorch_device.forget_peak(self._index)
        result = work()
        _, most = pytorch_device.peak(self._index)
        return result, max(0, most - before)

    def _run(self, network: Network, inputs: Mapping[str, Array], wanted: Sequence[int]) -> list[Array]:
        with self._streams.taken() as stream:
            found = self._called(network, inputs)
            # Into pinned memory all at once, and one wait for all of them.
            hosts = [torch.empty(found[i].shape, dtype=found[i].dtype, pin_memory=True) for i in wanted]
            for host, i in zip(hosts, wanted, strict=True):
                host.copy_(found[i], non_blocking=True)
            stream.synchronize()
        return [_array(host) for host in hosts]

    def _moved(self, tensor: Any) -> Any:
        return tensor.pin_memory().to(f"cuda:{self._index}", non_blocking=True)


def use_threads(wanted: int) -> None:
    """Threads of the runs of the calling thread; 0: PyTorch's own choice. A new thread begins with what any other
    has set last, so it is always told."""
    threads = wanted or default_threads()
    if getattr(_of_thread, "threads", None) != threads:
        torch.set_num_threads(threads)
        _of_thread.threads = threads


@functools.cache
def default_threads() -> int:
    """PyTorch's own choice, as it was before anything was set."""
    return int(torch.get_num_threads())


def _tensor(spec: TensorSpec, array: Array) -> Any:
    """A copy: what came in is read-only, and a model may work in place."""
    tensor = torch.tensor(np.ascontiguousarray(array).reshape(array.shape))
    return tensor.view(torch.bfloat16) if spec.datatype == "BF16" else tensor


def _array(tensor: Any) -> Array:
    """In C order; BF16 as its bits."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    found: Array = tensor.numpy()
    return found


def _declared(spec: TensorSpec, tensor: Any, converted: bool) -> Any:
    """The tensor in its declared type. Raises ModelLoadError where it is not what was declared, which the warm-up
    finds."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    wanted = DTYPES[spec.datatype]
    if tensor.dtype != wanted:
        if not (converted and tensor.is_floating_point() and spec.datatype in FLOATS):
            found = NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
            raise ModelLoadError(f"outputs: '{spec.name}' is {found}, not {spec.datatype} as declared")
        tensor = tensor.to(wanted)
    fits = tensor.ndim == len(spec.shape) and all(
        want in (-1, size) for want, size in zip(spec.shape, tensor.shape, strict=True)
    )
    if not fits:
        raise ModelLoadError(f"outputs: '{spec.name}' is {list(tensor.shape)}, not {list(spec.shape)} as declared")
    return tensor
