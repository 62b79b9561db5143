"""TorchScript files. The file does not tell what its inputs and outputs look like, so the settings must."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from appliance.backends.base import LoadRequest
from appliance.backends.pytorch_network import CONVERSIONS, Kind, Network, declared, leaves, places
from appliance.errors import ModelError, ModelLoadError
from appliance.models import torch_script
from appliance.models.spec import TensorSpec

_KINDS: dict[str, Kind] = {
    "Tensor": "tensor",
    "Optional[Tensor]": "tensor",
    "int": "int",
    "float": "float",
    "bool": "bool",
}


def load_script(request: LoadRequest, device: Any) -> Network:
    """Raises ModelLoadError, and what PyTorch raises."""
    options = request.config.pytorch
    if options.compile:
        raise ModelLoadError("pytorch.compile: TorchScript cannot be compiled; export the model with torch.export")
    whole = _read(request.path, device)
    part = _part(whole, options.module)
    check_graph(part, options.method)
    part.eval()
    if options.dtype:
        part.to(dtype=CONVERSIONS[options.dtype])
    if options.channels_last:
        part.to(memory_format=torch.channels_last)
    kept = _kept(part, options.method)
    part = _frozen(part, options.method)
    if kept and (kept := _kept(part, options.method)):
        parts = ", ".join(name for name, _ in whole.named_children())
        raise ModelLoadError(
            f"the model keeps values in itself from one run to the next ({', '.join(kept)}), so requests would "
            "disturb each other; export it with these as inputs and outputs, or name a part of it that does not with "
            f"pytorch.module (it has: {parts or 'none'})"
        )
    function = getattr(part, options.method)
    arguments = function.schema.arguments[1:]
    names = [a.name for a in arguments]
    signature = ", ".join(f"{a.name} {a.type}" for a in arguments)
    declared(request, "a TorchScript file", f" (the model's arguments: {signature or 'none'})")
    at = places([t.name for t in request.inputs], names, "input")
    for i, argument in enumerate(arguments):
        if i not in at and not argument.has_default_value():
            raise ModelLoadError(f"inputs: '{argument.name}' is not declared (the model's arguments: {signature})")
    kinds = tuple(_kind(arguments[i], spec) for i, spec in zip(at, request.inputs, strict=True))
    given = [names[i] for i in at]
    ordered = Ordered([t.name for t in request.outputs])

    def call(values: Sequence[Any]) -> Sequence[Any]:
        return ordered(function(**dict(zip(given, values, strict=True))))

    floats = CONVERSIONS[options.dtype] if options.dtype else None
    return Network(call, request.inputs, request.outputs, kinds, "pytorch_libtorch", floats)


class Ordered:
    """What a model gives, as the outputs that were declared."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._places: dict[tuple[str | None, ...], list[int]] = {}

    def __call__(self, result: Any) -> list[Any]:
        """Raises ModelLoadError where they are not there."""
        found = list(leaves(result))
        keys = tuple(key for key, _ in found)
        if keys not in self._places:
            self._places[keys] = self._find(keys)
        return [_tensor(found[i][1], name) for i, name in zip(self._places[keys], self._names, strict=True)]

    def _find(self, keys: Sequence[str | None]) -> list[int]:
        known = [key if key is not None else f"#{i}" for i, key in enumerate(keys)]
        if any(keys) and not set(self._names) <= set(known):
            raise ModelLoadError(f"outputs: the model gives {', '.join(known)}; declare these names")
        return places(self._names, known, "output")


def _tensor(value: Any, name: str) -> Any:
    if isinstance(value, bool | int | float):
        return torch.tensor(value)
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"output '{name}' is a {type(value).__name__}, not a tensor")
    return value


def _read(path: Path, device: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript as such
        return torch.jit.load(str(path), map_location=device)


def _part(whole: Any, wanted: str) -> Any:
    part = whole
    for name in wanted.split(".") if wanted else ():
        children = dict(part.named_children())
        if name not in children:
            raise ModelLoadError(
                f"pytorch.module: there is no part '{name}' in it (there are: {', '.join(children) or 'none'})"
            )
        part = children[name]
    return part


def _kind(argument: Any, spec: TensorSpec) -> Kind:
    kind = _KINDS.get(str(argument.type))
    if kind is None:
        raise ModelLoadError(
            f"inputs: argument '{argument.name}' is of type {argument.type}, which cannot be given; "
            "wrap the model so that it takes tensors"
        )
    if kind != "tensor" and (any(size != 1 for size in spec.shape) or len(spec.shape) > 1):
        raise ModelLoadError(f"inputs: '{spec.name}' is one {kind} of the model's, so its shape is [] or [1]")
    return kind


def check_graph(part: Any, method: str) -> None:
    """Raises ModelLoadError for a method that is not there, or that has operators which may not be run."""
    methods = part._c._method_names() if hasattr(part, "_c") else ()
    if method not in methods:
        raise ModelLoadError(
            f"pytorch.method: there is no '{method}' in it (there are: {', '.join(methods) or 'none'})"
        )
    if list(part._c._get_forward_hooks()) or list(part._c._get_forward_pre_hooks()):
        raise ModelLoadError("it has hooks around its forward, which are not run; export it without them")
    if fault := torch_script.graph_fault({node.kind() for node in _nodes(_graph(part, method))}):
        raise ModelLoadError(fault)


def _graph(part: Any, method: str) -> Any:
    """All that a method does, with the functions that it calls put in their places."""
    graph = part._c._get_method(method).graph.copy()
    torch._C._jit_pass_inline(graph)
    return graph


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
        for name in node.attributeNames():
            if node.kindOf(name) == "g":
                yield from _nodes(node.g(name))


def _kept(part: Any, method: str) -> list[str]:
    """The names of what a run changes in the model itself."""
    found: list[str] = []
    for node in _nodes(_graph(part, method)):
        if node.kind() == "prim::SetAttr":
            found.append(node.s("name"))
        elif node.kind().endswith("_") and not node.kind().endswith("__") and next(node.inputs(), None) is not None:
            source = next(node.inputs()).node()
            if source.kind() == "prim::GetAttr":
                found.append(source.s("name"))
    return sorted(set(found))


def _frozen(part: Any, method: str) -> Any:
    """With its weights as constants, which lets PyTorch simplify it; as it was where that cannot be."""
    keep = None if method == "forward" else [method]
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.freeze(part, preserved_attrs=keep)
    return part
