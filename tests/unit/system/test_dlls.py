"""Where the libraries of CUDA come from: the order of the places, on machines that are made up."""

from pathlib import Path

import pytest

from appliance.system import cuda_needs, dlls
from appliance.system.cuda import Driver
from appliance.system.cuda_loader import FakeLoader
from appliance.system.dlls import FakeSurroundings, Libraries, look, search

PROGRAM, PACKS, SITE, TOOLKIT = Path("/program"), Path("/state/runtimes"), Path("/site"), Path("/toolkit")
NAME = "cublas64_13.dll"
BUNDLED = PROGRAM / "cuda" / NAME
PACK = PACKS / "cuda-13.5.37" / "bin" / NAME
PACKAGE = SITE / "nvidia" / "cu13" / "bin" / "x86_64" / NAME
INSTALLED = TOOLKIT / "bin" / "x64" / NAME


def around(*files: Path, windows: bool = True) -> FakeSurroundings:
    return FakeSurroundings(
        files, windows=windows, program=PROGRAM, packages=[SITE], variables={"CUDA_PATH": str(TOOLKIT)}
    )


def taken(*files: Path) -> tuple[str, Path] | None:
    place = look("onnx", PACKS, "1.31.1", around(*files)).choice(NAME)
    return (place.kind, place.folder / NAME) if place else None


def test_the_order_of_the_places() -> None:
    assert taken(BUNDLED, PACK, PACKAGE, INSTALLED) == ("bundled", BUNDLED)
    assert taken(PACK, PACKAGE, INSTALLED) == ("pack", PACK)
    assert taken(PACKAGE, INSTALLED) == ("package", PACKAGE)
    assert taken(INSTALLED) == ("toolkit", INSTALLED)
    assert taken() is None


def test_the_newest_pack_wins_by_number_and_not_by_letters() -> None:
    old, new = (PACKS / f"cuda-{version}" / "bin" / NAME for version in ("13.5.37", "13.12.1"))
    other = PACKS / "torch-14.0" / "bin" / NAME
    unfinished = PACKS / ".cuda-13.99.part" / "bin" / NAME
    assert taken(old, new, other, unfinished) == ("pack", new)


def test_packages_of_cuda_13_come_before_those_of_12_and_may_lie_as_older_ones_did() -> None:
    old = SITE / "nvidia" / "cu12" / "bin" / NAME
    assert taken(old, PACKAGE) == ("package", PACKAGE)
    assert taken(SITE / "nvidia" / "cublas" / "bin" / NAME) == ("package", SITE / "nvidia" / "cublas" / "bin" / NAME)


def test_the_toolkit_of_the_wanted_major_comes_first() -> None:
    variables = {"CUDA_PATH": "/t/14.0", "CUDA_PATH_V12_8": "/t/12.8", "CUDA_PATH_V13_0": "/t/13.0"}
    variables["CUDA_PATH_V13_10"] = "/t/13.10"
    found = search("onnx", FakeSurroundings(variables=variables), None, 13)
    homes = list(dict.fromkeys(place.folder.parts[2] for place in found))
    assert homes == ["13.10", "13.0", "14.0"]


def test_linux_has_other_names_and_folders() -> None:
    cublas, cudnn = SITE / "nvidia/cu13/lib/libcublas.so.13", SITE / "nvidia/cudnn/lib/libcudnn.so.9"
    found = look("onnx", PACKS, None, around(cublas, cudnn, windows=False))
    assert sorted(found.folders()) == sorted([cublas.parent, cudnn.parent])
    lib64 = TOOLKIT / "lib64" / "libcublas.so.13"
    assert look("onnx", None, None, around(lib64, windows=False)).folders() == [TOOLKIT / "lib64"]


def test_torch_has_its_own_pack_and_its_own_folder() -> None:
    name = "cusparse64_12.dll"
    pack, own = PACKS / "torch-13.5" / "bin" / name, SITE / "torch" / "lib" / name
    assert look("torch", PACKS, None, around(pack, own)).folders() == [pack.parent, own.parent]
    assert look("onnx", PACKS, None, around(PACKS / "torch-13.5" / "bin" / NAME)).folders() == []


def test_folders_that_hold_nothing_wanted_are_not_used() -> None:
    found = look("onnx", PACKS, None, around(PROGRAM / "python311.dll", TOOLKIT / "bin" / "cublas64_12.dll", PACK))
    assert found.folders() == [PACK.parent]


def test_a_report_names_the_place_of_each_and_what_is_wrong() -> None:
    graph = PACK.parent / "cudnn_graph64_9.dll"
    adv = PACK.parent / "cudnn_adv64_9.dll"
    loader = FakeLoader(
        Driver(missing="no"),
        dict.fromkeys(["cufft64_12.dll", "cudnn_adv64_9.dll", "cudnn_ops64_9.dll"], "[WinError 126]"),
        windows=True,
        needs={"cudnn_adv64_9.dll": ["KERNEL32.dll", "cudnn_ops64_9.dll"]},
    )
    found = {row.name: row for row in look("onnx", PACKS, "1.31.1", around(PACK, graph, adv)).report(loader)}
    assert list(found) == [
        "cudart64_13.dll",
        "cublasLt64_13.dll",
        "cublas64_13.dll",
        "cufft64_12.dll",
        "nvrtc64_130_0.dll",
        "nvJitLink_130_0.dll",
        "cudnn64_9.dll",
        "cudnn_graph64_9.dll",
        "cudnn_ops64_9.dll",
        "cudnn_cnn64_9.dll",
        "cudnn_adv64_9.dll",
        "cudnn_heuristic64_9.dll",
        "cudnn_engines_precompiled64_9.dll",
        "cudnn_engines_runtime_compiled64_9.dll",
        "nvcuda.dll",
    ]
    kinds = {name: (row.kind, row.loadable, row.reason) for name, row in found.items()}
    assert kinds[NAME] == ("pack", True, None)
    assert kinds["cudnn_graph64_9.dll"] == ("pack", True, None)
    assert kinds["cudart64_13.dll"] == ("system", True, None)
    assert kinds["cufft64_12.dll"] == ("missing", False, "it was not found")
    assert kinds["cudnn_adv64_9.dll"] == ("pack", False, "it needs cudnn_ops64_9.dll, which was not found")
    reason = "no NVIDIA driver is installed; install driver 580.88 or newer"
    assert kinds["nvcuda.dll"] == ("missing", False, reason)
    assert (found[NAME].wanted, found["cudnn_graph64_9.dll"].wanted) == ("CUDA 13", "cuDNN 9")
    assert found[NAME].file == PACK


def test_a_library_of_another_version_is_told() -> None:
    loader = FakeLoader(
        windows=True,
        libraries={NAME: "[WinError 127]"},
        needs={NAME: ["cublasLt64_13.dll"]},
        lacking={"cublasLt64_13.dll": "cublasLtCreate"},
    )
    (row,) = [r for r in look("onnx", PACKS, None, around(PACK)).report(loader) if r.name == NAME]
    assert row.reason == "it needs another version of cublasLt64_13.dll (one that has cublasLtCreate)"


def test_words_of_the_system_have_no_folders() -> None:
    loader = FakeLoader(libraries={"libcublas.so.13": "/opt/hidden/libcublas.so.13: invalid ELF header"})
    file = SITE / "nvidia/cu13/lib/libcublas.so.13"
    (row,) = [r for r in look("onnx", None, None, around(file, windows=False)).report(loader) if r.file]
    assert row.reason == "libcublas.so.13: invalid ELF header"


def test_the_driver_in_a_report() -> None:
    def driver(made: Driver) -> dlls.Found:
        return Libraries([], [], FakeSurroundings(), "580.88").report(FakeLoader(made))[-1]

    assert driver(Driver(version=13000, init=0)).kind == "driver"
    assert driver(Driver(hung=True)).reason == "NVIDIA's driver does not answer"
    assert driver(Driver(missing="x")).wanted == "driver 580.88"


@pytest.mark.parametrize(
    ("version", "cuda"),
    [("1.31.1", 13), ("1.27.0", 13), ("2.0.0", 13), ("1.26.0", 12), ("1.19.2", 12), ("1.18.1", None), ("x", None)],
)
def test_the_cuda_of_a_version_of_onnx_runtime(version: str, cuda: int | None) -> None:
    row = cuda_needs.release(version)
    assert (row.cuda if row else None) == cuda
    assert row is None or row.cudnn == 9


def test_the_names_of_the_libraries() -> None:
    names = [w.name for w in cuda_needs.libraries("onnx", False, 13, 9)]
    assert names[:7] == [
        "libcudart.so.13",
        "libcublasLt.so.13",
        "libcublas.so.13",
        "libcurand.so.10",
        "libcufft.so.12",
        "libnvrtc.so.13",
        "libnvJitLink.so.13",
    ]
    twelve = [w.name for w in cuda_needs.libraries("onnx", True, 12, 9)]
    assert {"cufft64_11.dll", "nvrtc64_120_0.dll", "cudnn64_9.dll"} <= set(twelve)
    torch = {w.name for w in cuda_needs.libraries("torch", True, 13, 9)}
    assert torch - {w.name for w in cuda_needs.libraries("onnx", True, 13, 9)} == {
        "curand64_10.dll",
        "cusparse64_12.dll",
        "cusolver64_12.dll",
    }


def test_this_machine_is_looked_at_without_harm(tmp_path: Path) -> None:
    (tmp_path / "cuda-13.0" / "bin").mkdir(parents=True)
    (tmp_path / "cuda-13.0" / "bin" / "libcudart.so.13").write_bytes(b"")
    (tmp_path / "cuda-13.0" / "bin" / "cudart64_13.dll").write_bytes(b"")
    found = dlls.prepare("onnx", tmp_path, None)
    name = "cudart64_13.dll" if dlls.Here.windows else "libcudart.so.13"
    assert found.choice(name) == dlls.Place("pack", tmp_path / "cuda-13.0" / "bin")


def test_the_cure_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    cure = dlls.cure()
    assert cure is None or cure.endswith("appliance runtime install cuda --from FILE")
    monkeypatch.setattr(dlls.paths.sys, "frozen", True, raising=False)
    monkeypatch.setattr(dlls.paths.sys, "platform", "win32")
    assert dlls.cure() == "run: appliance-cli runtime install cuda --from FILE"


def test_an_engine_is_told_where_the_packs_are() -> None:
    assert dlls.paths.engine_command("info", Path("state"))[-2:] == ["--runtimes", str(Path("state", "runtimes"))]
    assert dlls.paths.engine_command("info")[-2:] == ["--log-level", "info"]
