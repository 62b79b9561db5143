"""A Jetson: its JetPack and what of ONNX Runtime fits to it, power mode, heat. Pure.

What is said of builds was seen, not run on a board: PyPI's onnxruntime-gpu 1.29.0 to 1.31.1 for arm64 are tagged
manylinux_2_34, want CUDA 13, have no TensorRT, and have code for the compute capabilities 8.9, 9.0, 12.0 and 12.1
(``cuobjdump``), which is neither Orin's 8.7 nor Thor's 11.0. CUDA and glibc of a JetPack are from NVIDIA's notes.
"""

from collections.abc import Iterator

import msgspec

from appliance.doctor.facts import Facts
from appliance.doctor.report import Line
from appliance.system.jetson import Board

_PAGE = "see docs/jetson.md"


class _Fit(msgspec.Struct, frozen=True):
    """Why PyPI's build for CUDA does not run on a JetPack's GPU, and what would."""

    why: str
    cure: str


_OWN = f"build ONNX Runtime for this board, or set device = cpu; {_PAGE}"
_FITS = {
    4: _Fit("its CUDA 10.2 and glibc 2.27 are too old for every build on PyPI", f"set device = cpu; {_PAGE}"),
    5: _Fit(
        "its CUDA 11.4 and glibc 2.31 are too old: PyPI's build for arm64 needs CUDA 13 and glibc 2.34",
        f"set device = cpu, or move to a newer JetPack; {_PAGE}",
    ),
    6: _Fit("it has CUDA 12.6, and PyPI's build for arm64 needs CUDA 13", _OWN),
    7: _Fit("PyPI's build for arm64 has no code for the GPUs of Orin (8.7) and Thor (11.0)", _OWN),
}
"""JetPack → what fits."""


def lines(facts: Facts) -> Iterator[Line]:
    """Nothing on other machines."""
    board = facts.board
    if board is None:
        return
    yield _jetpack(facts, board)
    if board.power_mode is not None:
        yield Line("power mode", "ok", f"{board.power_mode} (nvpmodel)")
    yield from _heat(board)


def _jetpack(facts: Facts, board: Board) -> Line:
    words = f"{board.model}, {_name(board)}"
    trials = facts.engine.trials if facts.engine else ()
    if any(t.provider == "CUDAExecutionProvider" and t.ran_on and not t.error for t in trials):
        return Line("JetPack", "ok", f"{words}: this build of ONNX Runtime runs on its GPU")
    if facts.chosen.cpu_only:
        return Line("JetPack", "ok", f"{words} (its GPU is not used: the setting device is {facts.chosen.device})")
    fit = _FITS.get(board.generation or 0)
    if fit is None:
        return Line("JetPack", "warning", f"{words}, which is not known here", _PAGE)
    return Line("JetPack", "warning", f"{words}: models run on the CPU; {fit.why}", fit.cure)


def _name(board: Board) -> str:
    """ "JetPack 6.2 (L4T 36.4.3)"."""
    if board.release is None:
        return "no release file of NVIDIA's (in a container that was started without NVIDIA's runtime there is none)"
    return f"JetPack {board.jetpack} (L4T {board.release})" if board.jetpack else f"L4T {board.release}"


def _heat(board: Board) -> Iterator[Line]:
    """By the kernel's own word for where it begins to slow the board down."""
    hot = [zone for zone in board.zones if zone.slows_at is not None and zone.celsius >= zone.slows_at]
    for zone in hot:
        words = f"{zone.name} is at {zone.celsius:.0f} °C, and from {zone.slows_at:.0f} °C the board slows down"
        yield Line(
            "heat", "warning", words, "look after its fan, or choose a lower power mode (sudo nvpmodel -m NUMBER)"
        )
    if board.zones and not hot:
        warmest = max(board.zones, key=lambda zone: zone.celsius)
        yield Line("heat", "ok", f"{warmest.celsius:.0f} °C at most ({warmest.name})")
