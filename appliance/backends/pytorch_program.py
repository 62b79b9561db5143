"""``torch.export`` programs. The file tells its inputs and outputs, which sizes are free, and what it demands."""

import logging
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, SymIntArgument, TensorArgument
from torch.export.passes import move_to_device_pass
from torch.export.pt2_archive._package import load_pt2
from torch.utils import _pytree

from appliance.backends.base import LoadRequest
from appliance.backends.pytorch_network import CONVERSIONS, Kind, Network, datatype
from appliance.errors import ModelError, ModelLoadError
from appliance.models.spec import TensorSpec

logging.getLogger("torch.export").setLevel(logging.ERROR)  # it warns of endings, and of formats that are refused here

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def load_program(request: LoadRequest, device: Any) -> Network:
    """Raises ModelLoadError, and what PyTorch raises. The file's JSON has been judged (``torch_program``)."""
    options = request.config.pytorch
    if options.module or options.method != "forward":
        raise ModelLoadError("pytorch.module: a torch.export program has no parts to choose from")
    program = _read(request.path)
    _check_state(program)
    inputs, kinds, fixed = _inputs(program)
    outputs, at = _outputs(program)
    module = move_to_device_pass(program, str(device)).module()
    tree = program.call_spec.in_spec
    floats = CONVERSIONS[options.dtype] if options.dtype else None
    if floats is not None:
        _convert(module, floats)
    if options.channels_last:
        module.to(memory_format=torch.channels_last)
    function: Any = module
    if options.compile:
        free = any(size == -1 for spec in inputs for size in spec.shape)
        function = torch.compile(module, dynamic=free)

    def call(values: Sequence[Any]) -> Sequence[Any]:
        flat, given = [], iter(values)
        for value in fixed:
            flat.append(next(given) if value is _GIVEN else value)
        args, kwargs = _pytree.tree_unflatten(flat, tree)
        found = _pytree.tree_leaves(function(*args, **kwargs))
        return [_tensor(found[i], spec.name) for i, spec in zip(at, outputs, strict=True)]

    return Network(call, inputs, outputs, kinds, "pytorch_export", floats)


class _Given:
    """Stands for a value that each run brings."""


_GIVEN = _Given()


def _tensor(value: Any, name: str) -> Any:
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"output '{name}' is a {type(value).__name__}, not a tensor")
    return value


def _read(path: Path) -> Any:
    programs = load_pt2(str(path)).exported_programs
    if list(programs) != ["model"]:
        raise ModelLoadError("there is not exactly one program in it")
    program = programs["model"]
    for graph in _graphs(program.graph_module):
        for node in graph.nodes:
            if node.op == "call_function" and not _known(node.target):
                raise ModelLoadError(f"it calls {node.target}, which is not an operator of PyTorch's")
    return program


def _graphs(module: Any) -> Iterator[Any]:
    for inner in module.modules():
        if isinstance(inner, torch.fx.GraphModule):
            yield inner.graph


def _known(target: Any) -> bool:
    """What ``torch_program`` lets through, once more of what PyTorch made of it."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return True
    name = getattr(target, "__name__", "")
    return (
        getattr(operator, name, None) is target
        or (getattr(torch, name, None) is target and name.startswith("sym_"))
        or getattr(target, "__module__", None) == "math"
    )


def _check_state(program: Any) -> None:
    """Raises ModelLoadError where a run changes what the next one meets."""
    signature = program.graph_signature
    own = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    kept = {*signature.buffers_to_mutate.values(), *getattr(signature, "parameters_to_mutate", {}).values()}
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.fx.Node):
                kept.update(own[source.name] for source in _sources(value) if source.name in own)
    if kept:
        raise ModelLoadError(
            f"the model keeps values in itself from one run to the next ({', '.join(sorted(kept))}), so requests "
            "would disturb each other; export it with these as inputs and outputs"
        )


def _sources(node: Any) -> Iterator[Any]:
    """What the memory of a value may be that of: the value itself, and what it is a view of."""
    while True:
        yield node
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            return
        first = next(iter(node.args), None)
        if not isinstance(first, torch.fx.Node) or not any(a.alias_info for a in node.target._schema.returns):
            return
        node = first


def _inputs(program: Any) -> tuple[tuple[TensorSpec, ...], tuple[Kind, ...], list[Any]]:
    """Inputs, what each is given as, and all values in the program's order with those in their places."""
    meta = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    specs: list[TensorSpec] = []
    kinds: list[Kind] = []
    fixed: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            continue
        match spec.arg:
            case TensorArgument(name=name):
                specs.append(_spec(name, meta[name], "input"))
                kinds.append("tensor")
                fixed.append(_GIVEN)
            case SymIntArgument(name=name):
                specs.append(TensorSpec(name, "INT64", ()))
                kinds.append("int")
                fixed.append(_GIVEN)
            case ConstantArgument(value=value):
                fixed.append(value)
            case _:
                raise ModelLoadError(f"an input is a {type(spec.arg).__name__}, which cannot be given")
    return tuple(specs), tuple(kinds), fixed


def _outputs(program: Any) -> tuple[tuple[TensorSpec, ...], list[int]]:
    """Outputs that are tensors, and the place of each among all. Those in a dictionary have its keys as names."""
    meta = {node.name: node.meta.get("val") for node in program.graph.nodes}
    tree = program.call_spec.out_spec
    keys = [str(key) for key in tree.context] if tree.type is dict else []
    user = [spec.arg for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    found: dict[str, tuple[TensorSpec, int]] = {}
    for i, arg in enumerate(user):
        if isinstance(arg, TensorArgument):
            name = keys[i] if len(keys) == len(user) else arg.name
            name = name if name not in found else f"{name}_{i}"
            found[name] = (_spec(name, meta[arg.name], "output"), i)
    if not found:
        raise ModelLoadError("it has no tensor among its outputs")
    return tuple(spec for spec, _ in found.values()), [i for _, i in found.values()]


def _spec(name: str, value: Any, what: str) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    axes = tuple(None if isinstance(size, int) else str(size) for size in value.shape)
    return TensorSpec(name, datatype(value.dtype, f"{what} '{name}'"), shape, axes)


def _convert(module: Any, dtype: Any) -> None:
    """Weights and constants to ``dtype``, and operators that name a floating type to the same one."""
    module.to(dtype)

    def turned(value: Any) -> Any:
        return dtype if isinstance(value, torch.dtype) and value in _FLOATS else value

    for graph in _graphs(module):
        owner = graph.owning_module
        for node in list(graph.nodes):
            if node.op == "get_attr":
                _turn_constant(owner, str(node.target), dtype)
            elif "_assert_tensor_metadata" in str(node.target):
                graph.erase_node(node)
            elif node.op == "call_function":
                node.args = torch.fx.node.map_aggregate(node.args, turned)
                node.kwargs = torch.fx.node.map_aggregate(node.kwargs, turned)
        owner.recompile()


def _turn_constant(owner: Any, target: str, dtype: Any) -> None:
    *path, last = target.split(".")
    for name in path:
        owner = getattr(owner, name)
    value = getattr(owner, last)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter) and value.dtype in _FLOATS:
        setattr(owner, last, value.to(dtype))
