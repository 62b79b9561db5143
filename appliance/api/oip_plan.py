"""A checked infer request, and what is remembered of its header for the next one that has the same. Pure."""

from typing import Any

import msgspec

from appliance.models.spec import ModelSpec
from appliance.models.tensors import Tensor

HEADER_KEPT = 2048
"""Headers of up to so many bytes are remembered."""

_PLANS = 256
_ANSWERS = 64


class OutputWish(msgspec.Struct, frozen=True):
    """One output as asked for. ``classes``: the classification extension's k, or 0."""

    name: str
    binary: bool
    classes: int = 0


class InferRequest(msgspec.Struct, frozen=True):
    """A checked request: inputs in the model's order. ``timeout_ms``: the queue deadline wished for, or None.
    ``names``: of the outputs. ``answers``: the JSON of earlier answers to the same request header."""

    id: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[OutputWish, ...]
    priority: int
    timeout_ms: float | None
    names: tuple[str, ...]
    answers: dict[Any, bytes] | None = None


class _Plan:
    """A checked request header in front of binary data: the next request with the same header needs no look at it.

    Holds no bytes of the request. ``end``: the size of the whole body.
    """

    __slots__ = ("_cuts", "_rest", "end", "max_elements", "spec")

    def __init__(self, request: InferRequest, first: int, spec: ModelSpec, max_elements: int) -> None:
        self.spec = spec
        self.max_elements = max_elements
        self._rest = (request.outputs, request.priority, request.timeout_ms, request.names, request.answers)
        self._cuts: list[tuple[str, str, tuple[int, ...], int, int]] = []
        self.end = first
        for tensor in request.inputs:
            start, self.end = self.end, self.end + tensor.nbytes
            self._cuts.append((tensor.name, tensor.datatype, tensor.shape, start, self.end))

    def request(self, body: memoryview) -> InferRequest:
        inputs = tuple([Tensor(name, kind, shape, body[a:b]) for name, kind, shape, a, b in self._cuts])
        return InferRequest("", inputs, *self._rest)


# Clients send the same header again and again. A plan holds its spec, so that the id stays the spec's.
_plans: dict[tuple[int, bytes], _Plan] = {}


def find(header: bytes, body: memoryview, spec: ModelSpec, max_elements: int) -> InferRequest | None:
    """The request of a body that begins with ``header``, if that was checked before."""
    plan = _plans.get((id(spec), header))
    if plan is None or plan.max_elements != max_elements or plan.end != body.nbytes:
        return None
    return plan.request(body)


def remember(header: bytes, size: int, request: InferRequest, spec: ModelSpec, max_elements: int) -> None:
    """Keep the plan, if the header alone says how ``size`` bytes are cut: numbers in binary, in the model's order."""
    plan = _Plan(request, len(header), spec, max_elements)
    if plan.end == len(header) + size and not any(t.datatype == "BYTES" for t in request.inputs):
        if len(_plans) >= _PLANS:
            _plans.clear()
        _plans[id(spec), header] = plan


def remember_answer(request: InferRequest, key: Any, header: bytes) -> None:
    """The JSON in front of outputs of these sizes."""
    if request.answers is not None and len(request.answers) < _ANSWERS:
        request.answers[key] = header
