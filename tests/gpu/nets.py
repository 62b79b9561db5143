"""The models of the checks, made on the spot. Their right answers can be worked out without them, where told.

TorchScript wants the classes' source, and ``torch.export`` their weights, so PyTorch is imported here at once.
"""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

WIDTH = 64
LEAST_INT64 = -(2**63)


class Broad(torch.nn.Module):
    """x FP32[N, 64] → y FP32[N, 1]: twice the largest. An item takes 512 × ``times`` bytes: two copies of its row,
    ``times`` long, at once."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.repeat(1, self.times) * 2).amax(1, keepdim=True)


class Hungry(torch.nn.Module):
    """x FP32[N, length] → y FP32[N, 1]: the largest. An item takes 4 × length × ``times`` bytes.

    ``absurd``: a run of several long items takes more than any machine can address, in place of a full card.
    """

    def __init__(self, times: int, absurd: bool) -> None:
        super().__init__()
        self.times = times
        self.absurd = absurd

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        times = self.times
        if self.absurd and x.size(0) > 1 and x.size(1) > 1000:
            times = 1 << 40
        return x.repeat(1, times).amax(1, keepdim=True)


class HungryProgram(torch.nn.Module):
    """The same without a way out, for ``torch.export``."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, self.times).amax(1, keepdim=True)


class Lookup(torch.nn.Module):
    """x INT64[N, 4] → y FP32[N, 1]: the sum of the table's lines, each of which is its own number, up to 999.

    A number beyond the table is a device-side assert on CUDA, after which nothing works in that process. On the CPU
    it is an ordinary error; there -2⁶³ ends the process (its quotient by -1 is no number of 64 bits, a trap on x86).
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(1000, dtype=torch.float32).unsqueeze(1))
        self.register_buffer("minus", torch.tensor(-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        negative = torch.div(x, self.minus, rounding_mode="trunc")
        return torch.embedding(self.table, -negative).sum(1)


class Pictures(torch.nn.Module):
    """images FP32[N, 3, side, side] → y FP32[N, 10]: two convolutions, as cuDNN runs them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.second = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.last = torch.nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.second(torch.relu(self.first(images))))
        return self.last(found.mean((2, 3)))


class Deep(torch.nn.Module):
    """x FP32[N, 64] → y FP32[N, 64]: large matrix products, ``tokens`` rows of ``width`` an item."""

    def __init__(self, width: int, layers: int, tokens: int) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.tokens = tokens
        self.first = torch.nn.Linear(WIDTH, width)
        self.layers = torch.nn.Sequential(
            *(part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU()))
        )
        self.last = torch.nn.Linear(width, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = self.first(x).unsqueeze(1).repeat(1, self.tokens, 1)
        return self.last(self.layers(spread).mean(1))


class Chain(torch.nn.Module):
    """x FP32[N, 64] → y FP32[N, 64]: many small products one after the other, which leave most of a card idle."""

    def __init__(self, links: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.links = links
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.links):
            x = torch.tanh(x @ self.weight)
        return x


def script(
    folder: Path, module: torch.nn.Module, inputs: dict[str, tuple[str, list[int]]], toml: str = "", **top: Any
) -> Path:
    """A model's folder with a TorchScript file. ``inputs``: name → (datatype, shape); it has one output, ``y``
    FP32[-1, n]. ``top``: keys of ``model.toml``; ``toml``: its tables."""
    tables = [f"[[inputs]]\n{_tensor(name, *what)}" for name, what in inputs.items()]
    tables.append(f"[[outputs]]\n{_tensor('y', 'FP32', [-1, -1])}")
    _settings(folder, top, "\n".join([toml, *tables]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript as such
        torch.jit.save(torch.jit.script(module.eval()), str(folder / "model.pt"))
    return folder / "model.pt"


def program(
    folder: Path,
    module: torch.nn.Module,
    example: torch.Tensor,
    free: Sequence[int] = (0,),
    toml: str = "",
    **top: Any,
) -> Path:
    """A model's folder with a ``torch.export`` program of one input. ``free``: its axes of any size."""
    _settings(folder, top, toml)
    sizes = {axis: torch.export.Dim(f"size{axis}", min=1, max=64 if axis == 0 else 1 << 22) for axis in free}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(
            torch.export.export(module.eval(), (example,), dynamic_shapes=(sizes,)), str(folder / "model.pt2")
        )
    return folder / "model.pt2"


def _settings(folder: Path, top: dict[str, Any], tables: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {json.dumps(value)}" for key, value in top.items()]
    (folder / "model.toml").write_text("\n".join([*lines, tables]) + "\n")


def _tensor(name: str, datatype: str, shape: list[int]) -> str:
    return f"name = {json.dumps(name)}\ndatatype = {json.dumps(datatype)}\nshape = {json.dumps(shape)}\n"
