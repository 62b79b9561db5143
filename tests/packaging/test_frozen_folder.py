"""The checks that a build of the Windows program makes on its folder, and what goes into that folder."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).resolve().parents[2] / "build" / "windows"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BUILD))
    return importlib.import_module("check_folder")


@pytest.fixture
def freeze(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BUILD))
    return importlib.import_module("freeze")


SHIPPED = frozenset({"python311.dll", "msvcp140.dll"})


@pytest.mark.parametrize(
    ("wanted", "importer", "missing"),
    [
        ("python311.dll", "_ssl.pyd", False),
        ("MSVCP140.dll", "onnxruntime.dll", False),
        ("KERNEL32.dll", "appliance.exe", False),
        ("WINSPOOL.DRV", "a.dll", False),
        ("api-ms-win-crt-heap-l1-1-0.dll", "a.dll", False),
        ("MSVCP140_1.dll", "onnxruntime.dll", True),
        ("python3.dll", "_psutil_windows.pyd", True),
        ("cublasLt64_13.dll", "onnxruntime_providers_cuda.dll", False),
        ("cublasLt64_13.dll", "onnxruntime.dll", True),
    ],
)
def test_an_import_is_shipped_or_part_of_windows(
    checks: ModuleType, wanted: str, importer: str, missing: bool
) -> None:
    assert checks.missing_import(wanted, importer, SHIPPED) is missing


@pytest.mark.parametrize(
    ("path", "is_absolute"),
    [
        ("C:\\build\\main.py", True),
        ("Z:/work/main.py", True),
        ("/work/main.py", True),
        ("\\\\server\\share\\main.py", True),
        ("appliance\\cli.py", False),
        ("main.py", False),
        ("<frozen os>", False),
    ],
)
def test_absolute_paths_are_told_from_others(checks: ModuleType, path: str, is_absolute: bool) -> None:
    assert checks.absolute(path) is is_absolute


def test_the_sources_of_nested_functions_are_seen(checks: ModuleType) -> None:
    inner = compile("def f():\n  return lambda: 1\n", "/home/me/a.py", "exec")
    assert set(checks.sources(inner)) == {"/home/me/a.py"}
    assert len(list(checks.sources(inner))) == 3  # module, f, lambda


def test_a_path_is_found_in_any_spelling(checks: ModuleType) -> None:
    assert checks.holds(b"..Z:\\home\\me\\x..", ["/home/me"]) == "/home/me"
    assert checks.holds("x /home/me".encode("utf-16-le"), ["/nowhere", "/home/me"]) == "/home/me"
    assert checks.holds(b'"Z:\\\\home\\\\me"', ["/home/me"]) == "/home/me"
    assert checks.holds(b"/home/you", ["/home/me"]) is None


def test_parts_are_folders_models_and_single_files(checks: ModuleType) -> None:
    files = [
        ("appliance.exe", 5),
        ("_internal/numpy/a.pyd", 30),
        ("_internal/numpy/core/b.pyd", 3),
        ("_internal/assets/models/ocr/1/model.onnx", 7),
        ("_internal/assets/models/ocr/model.toml", 1),
        ("_internal/assets/icons/a.ico", 2),
        ("_internal/python311.dll", 4),
    ]
    assert checks.parts(files) == [
        ("numpy", 33),
        ("assets/models/ocr", 8),
        ("appliance.exe", 5),
        ("python311.dll", 4),
        ("assets", 2),
    ]


def test_a_folder_with_faults_is_refused(checks: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "settings.txt").write_text("made in /home/somebody/work")
    faults = checks.check(tmp_path, ["/home/somebody"])
    assert "settings.txt holds /home/somebody" in faults
    assert "appliance.exe is missing" in faults


def test_the_version_resource_has_four_numbers(freeze: ModuleType) -> None:
    assert freeze.four_numbers("1.2.3") == (1, 2, 3, 0)
    assert freeze.four_numbers("2.0") == (2, 0, 0, 0)
    assert freeze.four_numbers("1.10.0rc2") == (1, 10, 0, 0)


def test_nothing_of_windows_or_wine_is_shipped(freeze: ModuleType, tmp_path: Path) -> None:
    ours, wines = tmp_path / "ours.dll", tmp_path / "wines.dll"
    ours.write_bytes(b"MZ".ljust(0x200, b"\0"))
    wines.write_bytes(b"MZ".ljust(0x40, b"\0") + b"Wine builtin DLL".ljust(0x80, b"\0"))
    assert freeze.is_shipped("a\\ours.dll", str(ours))
    assert not freeze.is_shipped("a\\wines.dll", str(wines))
    assert not freeze.is_shipped("ucrtbase.dll", str(ours))
    assert not freeze.is_shipped("api-ms-win-crt-heap-l1-1-0.dll", str(ours))
    assert not freeze.is_shipped("onnxruntime\\capi\\onnxruntime_providers_tensorrt.dll", str(ours))
    assert freeze.is_shipped("assets/models/classify/labels.txt", "")


def test_the_manifest_asks_for_long_paths_sharp_pictures_and_no_administrator(freeze: ModuleType) -> None:
    assert ">true</longPathAware>" in freeze.MANIFEST
    assert "PerMonitorV2" in freeze.MANIFEST
    assert 'level="asInvoker"' in freeze.MANIFEST


def test_the_program_is_named_alike_everywhere(freeze: ModuleType) -> None:
    from appliance.tray.menu import NAME

    assert freeze.PRODUCT == NAME


@pytest.fixture(autouse=True)
def _forget_modules() -> None:
    for name in ("check_folder", "freeze"):
        sys.modules.pop(name, None)
