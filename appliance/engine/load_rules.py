"""What a load's settings say against what the file is: sizes that are fixed, lengths that are filled up, the batch.
Pure. (Child side.)"""

import msgspec

from appliance.backends.base import Opened
from appliance.engine.messages import Load
from appliance.errors import ModelLoadError
from appliance.models import padding
from appliance.models.declared import FILENAME, Declared, check_declared
from appliance.models.spec import Pad, TensorSpec


def narrowed(m: Load, opened: Opened) -> tuple[TensorSpec, ...]:
    """The file's inputs with the sizes that the settings fix. Raises ModelLoadError where the two differ."""
    source = "model.toml" if m.config.inputs or m.config.outputs else FILENAME
    declared = Declared(m.declared_inputs, m.declared_outputs, m.declared_max_batch, source)
    faults = check_declared(declared, opened.inputs, opened.outputs)
    if faults:
        raise ModelLoadError("; ".join(faults[:3]))
    shapes = {t.name: t.shape for t in m.declared_inputs if t.shape}
    return tuple(msgspec.structs.replace(t, shape=shapes.get(t.name, t.shape)) for t in opened.inputs)


def pads(m: Load, opened: Opened) -> dict[str, Pad]:
    """The lengths that the operator says may be filled up. Raises ModelLoadError where they do not suit the model."""
    found = m.config.batching.pad
    if faults := list(padding.faults(found, opened.inputs, opened.outputs)):
        raise ModelLoadError("; ".join(faults[:3]))
    return found


def pads_unused(pads: dict[str, Pad], max_batch: int) -> tuple[str, ...]:
    return ("batching.pad is not used, requests are never merged",) if pads and max_batch <= 1 else ()


def declared_batch(m: Load) -> int | None:
    """The operator's word on merging, from ``model.toml`` or a foreign config; None: not said."""
    return m.config.batching.max if m.config.batching.max is not None else m.declared_max_batch


def batch_candidate(m: Load, opened: Opened) -> tuple[int, bool]:
    """(most items of a merged run, whether the operator said so); 0: never merged.

    Raises ModelLoadError when a batch is declared that the file's shapes rule out.
    """
    word = declared_batch(m)
    tensors: tuple[TensorSpec, ...] = (*opened.inputs, *opened.outputs)
    possible = all(t.shape and t.shape[0] == -1 for t in tensors) and bool(opened.inputs)
    if word is None:
        return (m.max_batch if possible and opened.batch_axis else 0), False
    if word <= 1:
        return 0, True
    if not possible:
        fixed = next(t for t in tensors if not t.shape or t.shape[0] != -1)
        raise ModelLoadError(
            f"a batch of {word} is declared, but '{fixed.name}' {fixed.describe()} has no free first axis"
        )
    return word, True
