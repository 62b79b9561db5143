"""Each fault that the doctor must explain, on machines that are made up; and docs/doctor.md says what it says."""

from pathlib import Path

import pytest

from appliance.doctor.findings import findings
from appliance.doctor.report import Line, passed
from tests.unit.doctor import faults

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"

# Fault → the check that explains it, and what must stand there, worked out by hand.
EXPLAINED = {
    "no driver": ("driver", "no NVIDIA driver is installed", "install driver 580.88"),
    "driver too old for CUDA 13": ("driver", "it runs CUDA 12.6 at most, CUDA 13.0 is needed", "580.88 or newer"),
    "cuDNN missing": ("cuDNN", "cudnn64_9.dll (cuDNN 9) was not found", "runtime install cuda"),
    "wrong CUDA major": ("CUDA", "CUDA 13 is needed (cublas64_13.dll), but CUDA 12 was found", "runtime install"),
    "`LoadLibrary` error 126: a library that another needs": (
        "CUDA",
        "cublasLt64_13.dll (CUDA 13) was not found (LoadLibrary error 126)",
        "runtime install",
    ),
    "`LoadLibrary` error 126: Microsoft's library": (
        "library",
        "MSVCP140_1.dll was not found (LoadLibrary error 126)",
        "Visual C++ Redistributable",
    ),
    "`LoadLibrary` error 127": (
        "cuDNN",
        "cudnn64_9.dll is of another version than ONNX Runtime needs (it has no cudnnGetVersion) "
        "(LoadLibrary error 127)",
        "runtime install",
    ),
    "hidden by `CUDA_VISIBLE_DEVICES`": ("device", "CUDA_VISIBLE_DEVICES is '-1', which hides", "variable"),
    "device full by other programs": ("memory", "python.exe (pid 4711) 22.0 GiB", "end other programs"),
    "Remote Desktop session without a card": ("device", "a Remote Desktop session (RDP-Tcp#7)", "machine itself"),
    "service session without a card": ("device", "this is session 0, where services run", "autostart on"),
    "port taken": ("port", "it is held by python.exe (pid 4711)", "setting port"),
    "port reserved by Windows": ("port", "reserved by Windows (ports 11689 to 11788)", "winnat"),
    "models folder not writable": ("folder", r"models cannot be written: Access is denied", "setting models"),
    "path with non-ASCII letters": ("paths", "letters beyond ASCII (模型)", "move the folder"),
    "path over 260 characters": ("paths", "a path of 278 characters", "LongPathsEnabled"),
}


def test_every_fault_has_its_row() -> None:
    assert list(EXPLAINED) == list(faults.FAULTS)


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_fault_is_explained(name: str, tmp_path: Path) -> None:
    check, found, cure = EXPLAINED[name]
    lines = faults.bad(findings(faults.FAULTS[name](tmp_path)))
    assert any(line.check == check and found in line.found and cure in line.cure for line in lines), lines
    assert all(line.cure for line in lines), "each line that is not ok says what to do"
    # What is not touched by the fault is well.
    assert {line.check for line in lines} <= {check, "library", "provider"}
    assert passed(lines) is (name == "path with non-ASCII letters")


def test_a_machine_that_is_well(tmp_path: Path) -> None:
    lines = findings(faults.well(tmp_path))
    assert faults.bad(lines) == []
    assert {line.check for line in lines} == {
        *("system", "program", "driver", "device", "CUDA", "cuDNN", "library", "provider", "memory"),
        *("session", "power", "port", "folder", "paths", "antivirus"),
    }
    assert sum(line.check == "library" for line in lines) == 14
    assert Line("library", "ok", "cudnn64_9.dll (cuDNN 9): from pack") in lines


def test_the_page_has_the_table(tmp_path: Path) -> None:
    """python -m tests.unit.doctor.faults prints it anew."""
    assert faults.table(tmp_path) in PAGE.read_text("utf-8")
