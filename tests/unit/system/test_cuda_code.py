"""Libraries that are made up, with the fat binaries that CUDA's compiler puts into them."""

import struct
from pathlib import Path

import pytest

from appliance.system import cuda_code
from appliance.system.cuda import Driver
from appliance.system.cuda_code import Code

PTX, CUBIN = 1, 2


def entry(kind: int, architecture: int, code: int = 40) -> bytes:
    """A header of 64 bytes, with the architecture in its eighth word, then the code."""
    return struct.pack("<HHIQ12xI32x", kind, 0x0101, 64, code, architecture) + bytes(code)


def fat(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(folder: Path, *parts: bytes) -> Path:
    file = folder / "libonnxruntime_providers_cuda.so"
    file.write_bytes(b"\x7fELF" + bytes(1000) + bytes(300).join(parts) + bytes(500))
    return file


def test_what_a_library_has_code_for(tmp_path: Path) -> None:
    file = library(tmp_path, fat(entry(CUBIN, 89), entry(CUBIN, 90, 4096), entry(PTX, 120)), fat(entry(CUBIN, 121)))
    assert cuda_code.read(file) == Code(frozenset({(8, 9), (9, 0), (12, 1)}), frozenset({(12, 0)}))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(5000),
        struct.pack("<I", 0xBA55ED50),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 60),
        fat(entry(7, 89)),
        fat(entry(CUBIN, 65000)),
        fat(struct.pack("<HHIQ12xI32x", CUBIN, 1, 0, 0, 5)),
    ],
)
def test_what_is_not_understood_says_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(content)
    assert cuda_code.read(file) is None
    assert cuda_code.read(tmp_path / "none.so") is None


ARM64 = Code(frozenset({(8, 9), (9, 0), (12, 0), (12, 1)}))
"""As cuobjdump lists it for PyPI's onnxruntime-gpu 1.31.1 for arm64."""


@pytest.mark.parametrize(
    ("capability", "runs"),
    [
        ((8, 7), False),  # Orin: machine code runs on GPUs of the same major and a minor that is not lower
        ((8, 9), True),
        ((9, 0), True),
        ((10, 0), False),
        ((11, 0), False),  # Thor
        ((12, 0), True),
        ((12, 1), True),  # GB10
    ],
)
def test_which_gpus_that_build_runs_on(capability: tuple[int, int], runs: bool) -> None:
    assert ARM64.runs_on(capability) is runs


def test_ptx_is_for_all_that_is_newer() -> None:
    code = Code(frozenset({(7, 5)}), frozenset({(9, 0)}))
    assert [code.runs_on(c) for c in ((7, 4), (7, 5), (8, 9), (9, 0), (12, 0))] == [False, True, False, True, True]
    assert code.told() == "7.5 and 9.0 or newer"
    assert Code(frozenset({(8, 7)})).told() == "8.7"


def test_the_fault_says_what_there_is() -> None:
    driver = Driver(version=13000, init=0, capabilities=((9, 0), (11, 0)))
    assert cuda_code.fault(driver, 0, ARM64) is None
    found = cuda_code.fault(driver, 1, ARM64)
    assert found is not None
    assert (found.part, found.wanted, found.found) == ("device", "11.0", "8.9, 9.0, 12.0 and 12.1")
    assert found.reason == (
        "cuda:1 has compute capability 11.0, for which this build of ONNX Runtime has no code (it has 8.9, 9.0, 12.0 "
        "and 12.1); install a build of ONNX Runtime for this GPU"
    )


def test_what_is_not_known_is_no_fault() -> None:
    driver = Driver(version=13000, init=0, capabilities=((11, 0), (99, 0)))
    assert cuda_code.fault(driver, 0, None) is None
    assert cuda_code.fault(driver, 1, ARM64) is None
    assert cuda_code.fault(driver, 2, ARM64) is None
    assert cuda_code.fault(Driver(missing="no such file"), 0, ARM64) is None
