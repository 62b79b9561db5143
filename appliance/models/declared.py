"""What ``config.pbtxt`` or ``model.toml`` declares of a model's tensors, and whether the loaded model agrees."""

from collections.abc import Iterator, Sequence

import msgspec

from appliance.models.spec import ModelConfig, TensorSpec

FILENAME = "config.pbtxt"
OWN = "model.toml"


class Declared(msgspec.Struct, frozen=True):
    """What a file of settings (``source``) says of the model, to be held against the model itself once it is loaded.

    Shapes are whole: with ``max_batch`` over 0 they begin with -1 for the batch axis. A datatype of ``""``
    and a shape of ``()`` mean: not given, found out from the file. ``max_batch`` is the most items of one
    request and of one run, strictly; 0: no batch axis; None: not given.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch: int | None = None
    source: str = FILENAME


def check_declared(declared: Declared, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[str]:
    """In which points the loaded model is not what ``declared`` says, in words; empty if it is.

    Outputs that are not declared are fine, inputs are not. An output's shape of ``()`` counts as unknown:
    files often leave output shapes out.
    """
    source = declared.source
    faults = [
        *_compare("input", declared.inputs, inputs, source),
        *_compare("output", declared.outputs, outputs, source),
    ]
    named = {tensor.name for tensor in (*declared.inputs, *declared.outputs)}
    if declared.inputs:
        faults += [
            f"{source} does not name the model's input '{tensor.name}'"
            for tensor in inputs
            if tensor.name not in named and not tensor.optional
        ]
    if declared.max_batch:
        merged = [*inputs, *(t for t in outputs if t.shape and (t.name in named or not declared.outputs))]
        faults += [
            f"{source} sets max_batch_size {declared.max_batch}, but the first axis of "
            f"'{tensor.name}' {tensor.describe()} is not a free batch axis"
            for tensor in merged
            if tensor.shape[:1] != (-1,)
        ]
    return faults


def _compare(kind: str, declared: Sequence[TensorSpec], real: Sequence[TensorSpec], source: str) -> Iterator[str]:
    by_name = {tensor.name: tensor for tensor in real}
    for wanted in declared:
        found = by_name.get(wanted.name)
        if found is None:
            has = ", ".join(f"'{name}'" for name in by_name) or "none"
            yield f"{source} names an {kind} '{wanted.name}' that the model does not have (it has: {has})"
            continue
        if wanted.datatype and wanted.datatype != found.datatype:
            yield f"{kind} '{wanted.name}': {source} says {wanted.datatype}, the model {found.datatype}"
        unknown = not wanted.shape or (kind == "output" and not found.shape)
        if not unknown and not _agree(wanted.shape, found.shape):
            yield f"{kind} '{wanted.name}': {source} says {wanted.describe()}, the model {found.describe()}"


def _agree(wanted: tuple[int, ...], found: tuple[int, ...]) -> bool:
    """A free axis of the model may be declared as a fixed size, not the other way round."""
    return len(wanted) == len(found) and all(have in (-1, want) for want, have in zip(wanted, found, strict=True))


def own(config: ModelConfig) -> Declared | None:
    """What the model's own settings say of its tensors."""
    if not config.inputs and not config.outputs:
        return None
    inputs, outputs = (
        tuple(TensorSpec(t.name, t.datatype, t.shape) for t in tensors) for tensors in (config.inputs, config.outputs)
    )
    return Declared(inputs, outputs, source=OWN)
