"""PyTorch behind the backend protocol: which files, on which device, with what bounds."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from appliance.backends import pytorch_device
from appliance.backends.base import LoadRequest, Opened
from appliance.backends.pytorch_errors import load_error
from appliance.backends.pytorch_native import check_trust, load_native
from appliance.backends.pytorch_network import Network
from appliance.backends.pytorch_program import load_program
from appliance.backends.pytorch_script import load_script
from appliance.backends.pytorch_session import CudaSession, PyTorchSession
from appliance.errors import ApplianceError, ModelLoadError
from appliance.models import torch_file
from appliance.models.spec import TensorSpec
from appliance.models.tensors import count, numpy_dtype

# Compiling by need, for each new shape of a request, would make some of them wait for seconds.
torch._C._jit_set_texpr_fuser_enabled(False)


class PyTorchBackend:
    """Opens TorchScript files and ``torch.export`` programs, and AOTInductor packages that the server trusts."""

    name = "pytorch"

    def __init__(self) -> None:
        self._streams: dict[int, pytorch_device.Streams] = {}

    def runtimes(self) -> dict[str, str]:
        return {"torch": str(torch.__version__)}

    def providers(self) -> tuple[str, ...]:
        return ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)

    def memory(self) -> dict[str, tuple[int, int, int]]:
        return {}

    def shrink(self) -> None:
        """What the allocator keeps and no tensor holds goes back to the device."""
        pytorch_device.give_back()

    def open(self, request: LoadRequest) -> PyTorchSession:
        """Look at the file as two readers see it, then load it."""
        kind = torch_file.inspect(request.path, request.root)
        if kind == "aotinductor":
            check_trust(request)
        where = pytorch_device.place(request.device, request.config.device)
        device = torch.device(where.name)
        try:
            records = _TorchRecords(request.path)
            if torch_file.judge(records, request.path.name) != kind:
                raise ModelLoadError("two readers of its archive do not agree on what it is")
            if where.index is not None:
                pytorch_device.bound(where.index, request.memory_limit)
            if kind == "aotinductor":
                network = load_native(request, records, where)
            else:
                network = load_script(request, device) if kind == "torchscript" else load_program(request, device)
            session = self._session(request, network, where)
        except Exception as error:  # noqa: BLE001 - PyTorch raises types of all kinds for a file it cannot read
            pytorch_device.give_back()
            raise load_error(error, request.path.parent) from None
        if request.config.pytorch.compile:
            _compile(session, request)
        return session

    def _session(self, request: LoadRequest, network: Network, where: pytorch_device.Place) -> PyTorchSession:
        opened = Opened(
            platform=network.platform,
            inputs=network.inputs,
            outputs=network.outputs,
            device=where.name,
            providers=("cpu",) if where.index is None else ("cuda", "cpu"),
            degraded=where.degraded,
            batch_axis=_has_batch_axis((*network.inputs, *network.outputs)),
            notes=network.notes,
        )
        pictures = request.config.pytorch.channels_last
        if where.index is None:
            return PyTorchSession(network, opened, request.threads, pictures)
        torch.cuda.synchronize(where.index)
        streams = self._streams.setdefault(where.index, pytorch_device.Streams(where.index))
        return CudaSession(network, opened, request.threads, pictures, where.index, streams)


def _has_batch_axis(tensors: Sequence[TensorSpec]) -> bool:
    """True if the first axes are one and the same free size. Where the file names no sizes, free will do: the
    warm-up proves it."""
    if any(not t.shape or t.shape[0] != -1 for t in tensors):
        return False
    return len({t.axes[0] if t.axes else None for t in tensors}) == 1


def _compile(session: PyTorchSession, request: LoadRequest) -> None:
    """The first runs are those that compile: here, so that what it takes counts as the model's own. Free sizes are
    compiled twice, since 1 is a case of its own."""
    names = [t.name for t in session.opened.outputs]
    for free in (2, 1):
        shapes = {t.name: _shape(t, free, request.config.warmup.shapes) for t in session.opened.inputs}
        inputs = {t.name: np.zeros(shapes[t.name], numpy_dtype(t.datatype)) for t in session.opened.inputs}
        if sum(count(shape) for shape in shapes.values()) > 1 << 26:
            raise ModelLoadError("pytorch.compile: the warm-up's shapes have too many elements; set warmup.shapes")
        try:
            session.run(inputs, names, session.cancellation())
        except ApplianceError as error:
            if free == 2 and any(-1 in t.shape for t in session.opened.inputs):
                continue  # not every model takes 2 wherever a size is free
            session.close()
            raise ModelLoadError(f"pytorch.compile: {error.message}") from None


def _shape(spec: TensorSpec, free: int, shapes: Any) -> tuple[int, ...]:
    return tuple(shapes.get(spec.name) or [free if size < 0 else size for size in spec.shape])


class _TorchRecords:
    """PyTorch's view of the archive."""

    def __init__(self, path: Path) -> None:
        self._reader = torch._C.PyTorchFileReader(os.fspath(path))

    def names(self) -> Sequence[str]:
        return list(self._reader.get_all_records())

    def read(self, name: str) -> bytes:
        return bytes(self._reader.get_record(name))
