"""AOTInductor packages: machine code, which the server's setting ``trust_native_code`` lets run for a model by name.

Nothing in such a file can be looked through. What is asked before it is loaded is whether it was made for this
machine, since code for another one ends the process.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import psutil
import torch
from torch.utils import _pytree

from appliance.backends.base import LoadRequest
from appliance.backends.pytorch_device import Place
from appliance.backends.pytorch_network import Kind, Network, declared, places
from appliance.backends.pytorch_script import Ordered
from appliance.errors import InvalidInput, ModelLoadError
from appliance.models.spec import PyTorchConfig
from appliance.models.torch_file import NATIVE, Records
from appliance.system import torch_setup

_MODEL = f"{NATIVE}model/"
_LIBRARIES = (".so", ".pyd", ".dll")
_PREFIX = "appliance-native-"
_CHECKED = re.compile(r"input_handles\[(\d+)\]: (.*)", re.DOTALL)
"""What the code says of an input that it was not compiled for (``AOTI_RUNTIME_CHECK_INPUTS``)."""

_SETS = {
    "AVX2": torch.cpu._is_avx2_supported,
    "AVX512": torch.cpu._is_avx512_supported,
    "AVX512_VNNI": torch.cpu._is_vnni_supported,
    "AMX_TILE": torch.cpu._is_amx_tile_supported,
}
"""Sets of instructions that a package names, and whether this processor has them."""


def check_trust(request: LoadRequest) -> None:
    """Raises ModelLoadError unless the server's settings name the model."""
    if not request.trusted:
        raise ModelLoadError(
            f"{request.path.name}: it is an AOTInductor package, which is machine code and not loaded from a model's "
            "folder; serve the torch.export program that it was made from, with pytorch.compile if wanted. If you "
            f"know who made it, add '{request.model}' to the server's setting trust_native_code"
        )


def load_native(request: LoadRequest, records: Records, where: Place) -> Network:
    """Run the code. Raises ModelLoadError, and what PyTorch raises. ``records``: the archive as PyTorch reads it."""
    check_trust(request)
    _check_options(request.config.pytorch)
    declared(request, "an AOTInductor package")
    if fault := misfit(_made_for(records), where):
        raise ModelLoadError(fault)
    loader = _loader(request, where)
    inputs, outputs = (_pytree.treespec_loads(text) for text in loader.get_call_spec())
    at = _places([t.name for t in request.inputs], _names(inputs))
    order = sorted(range(len(at)), key=at.__getitem__)
    ordered = Ordered([t.name for t in request.outputs])

    def call(values: Sequence[Any]) -> Sequence[Any]:
        try:
            found = loader.boxed_run([values[i] for i in order])
        except RuntimeError as error:
            if (said := _CHECKED.match(str(error))) is None:
                raise
            name = request.inputs[order[int(said[1])]].name
            words = f"input '{name}': the model was not compiled for it: {said[2].strip()}"
            raise InvalidInput(words, param=name) from None
        return ordered(_pytree.tree_unflatten(found, outputs))

    kinds: tuple[Kind, ...] = tuple("tensor" for _ in request.inputs)
    return Network(call, request.inputs, request.outputs, kinds, "pytorch_aotinductor")


def misfit(made_for: Mapping[str, str], where: Place) -> str | None:
    """Why a package that says this of itself does not run at this place, or None."""
    system, machine = torch_setup.machine()
    asked = made_for.get("AOTI_PLATFORM", ""), made_for.get("AOTI_MACHINE", "")
    if asked != (system, machine):
        return f"it was compiled for {' on '.join(asked)}, this is {system} on {machine}; compile it here"
    lacking = [name for name in made_for.get("AOTI_CPU_ISA", "").split() if name in _SETS and not _SETS[name]()]
    if lacking:
        return f"it was compiled for a processor with {', '.join(lacking)}, which this one lacks; compile it here"
    device = made_for.get("AOTI_DEVICE_KEY", "")
    if device not in ("cpu", "cuda"):
        return f"it was compiled for a device '{device}', which is not served"
    if device == "cpu" and where.index is not None:
        return f'it was compiled for the CPU and would run on {where.name}; set device = "cpu" in model.toml'
    if device == "cuda" and where.index is None:
        return f"it was compiled for CUDA and would run on the CPU{f': {where.degraded}' if where.degraded else ''}"
    capability = made_for.get("AOTI_COMPUTE_CAPABILITY", "")
    if where.index is not None and capability.isdecimal():
        # Code for a GPU runs on the same generation from that version on (CUDA's binary compatibility).
        major, minor = divmod(int(capability), 10)
        here = torch.cuda.get_device_capability(where.index)
        if here[0] != major or here[1] < minor:
            return (
                f"it was compiled for GPUs of compute capability {major}.{minor}, {where.name} has "
                f"{here[0]}.{here[1]}; compile it for this one"
            )
    return None


def _check_options(options: PyTorchConfig) -> None:
    default = PyTorchConfig()
    for key in ("dtype", "channels_last", "compile", "module", "method"):
        if getattr(options, key) != getattr(default, key):
            raise ModelLoadError(f"pytorch.{key}: an AOTInductor package is compiled already and stays as it is")


def _made_for(records: Records) -> dict[str, str]:
    """What the package tells of the machine that it was compiled for. Raises ModelLoadError."""
    names = [name for name in records.names() if name.startswith(NATIVE)]
    if any(not name.startswith(_MODEL) for name in names):
        raise ModelLoadError("it holds several compiled models; package one into a file of its own")
    if any(".." in PurePosixPath(name).parts or "\\" in name for name in records.names()):
        raise ModelLoadError("a record of it would be unpacked outside of its folder")
    if sum(name.endswith(_LIBRARIES) for name in names) != 1:
        raise ModelLoadError("there is not exactly one compiled library in it; package it without package_cpp_only")
    found: dict[str, str] = {}
    for name in names:
        if name.endswith("_metadata.json"):
            try:
                found.update(msgspec.json.decode(records.read(name), type=dict[str, str]))
            except msgspec.DecodeError:
                raise ModelLoadError("what it tells of the machine that it is for is damaged") from None
    if not found:
        raise ModelLoadError("it does not tell which machine it was compiled for; compile it again")
    return found


def _names(tree: Any) -> list[str]:
    """Of the values that it takes: those by keyword have names, the others places."""
    args, kwargs = tree.children()
    names = [f"#{i}" for i in range(args.num_leaves)]
    for key, child in zip(kwargs.context, kwargs.children(), strict=True):
        names += [str(key)] if child.num_leaves == 1 else [f"{key}.{i}" for i in range(child.num_leaves)]
    return names


def _places(names: Sequence[str], known: Sequence[str]) -> list[int]:
    """Which of the ``known`` each declared name is: by its keyword, the others in order among the rest."""
    at = {name: known.index(name) for name in names if name in known}
    left = [i for i in range(len(known)) if i not in at.values()]
    others = [name for name in names if name not in at]
    found = places(others, [known[i] for i in left], "input")
    at.update((name, left[i]) for name, i in zip(others, found, strict=True))
    return [at[name] for name in names]


def _loader(request: LoadRequest, where: Place) -> Any:
    """PyTorch unpacks the package and loads the library in it. ``aoti_load_package`` does the same, after it has
    compiled test programs to find out what ``misfit`` asks the processor."""
    with _folder(keep=where.index is not None or os.name != "posix"):
        return torch._C._aoti.AOTIModelPackageLoader(
            os.fspath(request.path),
            "model",
            False,  # several threads
            max(1, request.config.instances),
            -1 if where.index is None else where.index,
        )


@contextlib.contextmanager
def _folder(keep: bool) -> Iterator[None]:
    """PyTorch unpacks into a folder of this user's own inside. ``keep``: what lies there is needed beyond: kernels
    of a GPU are read at their first run, and Windows holds a library's file. PyTorch removes these at the end, and
    the next engine what one that was killed has left."""
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = old.name.removeprefix(_PREFIX).partition("-")[0]
        if pid == str(os.getpid()):
            with contextlib.suppress(OSError):
                old.rmdir()  # of a model that was unloaded, so it is empty
        elif pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    before = {name: os.environ.get(name) for name in ("TMPDIR", "TMP")}
    os.environ.update(dict.fromkeys(before, folder))
    kept = False
    try:
        yield
        kept = keep
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
