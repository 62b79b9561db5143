"""Why CUDA does not run: every cause, on machines that are made up, and the real looking on this one."""

import ctypes.util
import io
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from appliance.system import cuda_loader, pe
from appliance.system.cuda import CudaFinding, Driver, why_not_cuda
from appliance.system.cuda_loader import FakeLoader, SystemLoader

ADA = (8, 9)
GOOD = Driver(version=13020, init=0, capabilities=(ADA,))


@pytest.fixture
def provider(tmp_path: Path) -> Path:
    file = tmp_path / "libonnxruntime_providers_cuda.so"
    file.touch()
    return file


@pytest.fixture
def windows_provider(tmp_path: Path) -> Path:
    file = tmp_path / "onnxruntime_providers_cuda.dll"
    file.touch()
    return file


def test_the_cpu_build_says_what_to_install(tmp_path: Path) -> None:
    for file in (None, tmp_path / "not there"):
        finding = why_not_cuda(FakeLoader(), file)
        assert "CPU build" in finding.reason
        assert "extra 'cuda'" in finding.reason
        assert (finding.wanted, finding.found) == ("onnxruntime-gpu", "onnxruntime")


@pytest.mark.parametrize(
    ("driver", "words", "wanted", "found"),
    [
        (Driver(missing="libcuda.so.1: cannot open"), "no NVIDIA driver is installed (libcuda.so.1", "CUDA 13", None),
        (Driver(hung=True), "does not answer", None, None),
        (Driver(version=12080, init=0, capabilities=(ADA,)), "runs CUDA 12.8 at most", "13.0", "12.8"),
        (Driver(version=13000, init=803), "does not fit the running NVIDIA driver (error 803)", None, None),
        (Driver(version=13000, init=999), "did not start (error 999)", None, None),
        (Driver(version=13000, init=100), "it finds no device", None, None),
        (Driver(version=13000, init=0), "it finds no device", None, None),
        (
            Driver(version=13000, init=0, capabilities=((6, 1),)),
            "compute capability 6.1, 7.5 is needed",
            "7.5",
            "6.1",
        ),
    ],
)
def test_the_driver_and_its_devices(
    provider: Path, driver: Driver, words: str, wanted: str | None, found: str | None
) -> None:
    finding = why_not_cuda(FakeLoader(driver), provider)
    assert words in finding.reason
    assert (finding.wanted, finding.found) == (wanted, found)


def test_a_hidden_device(provider: Path) -> None:
    loader = FakeLoader(Driver(version=13000, init=100), variables={"CUDA_VISIBLE_DEVICES": "-1"})
    assert "CUDA_VISIBLE_DEVICES is '-1', which hides" in why_not_cuda(loader, provider).reason


@pytest.mark.parametrize(("count", "words"), [(1, "only cuda:0"), (2, "cuda:0 to cuda:1")])
def test_a_device_that_is_not_there(provider: Path, count: int, words: str) -> None:
    loader = FakeLoader(
        Driver(version=13000, init=0, capabilities=(ADA,) * count), variables={"CUDA_VISIBLE_DEVICES": "0,1"}
    )
    finding = why_not_cuda(loader, provider, device=3)
    assert finding.reason == f"there is no device cuda:3, {words} (CUDA_VISIBLE_DEVICES is '0,1')"
    assert finding.wanted == "cuda:3"


def lacking(name: str) -> str:
    return f"{name}: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("library", "product"),
    [("libcublasLt.so.13", "CUDA 13"), ("libcudart.so.13", "CUDA 13"), ("libcudnn.so.9", "cuDNN 9")],
)
def test_the_provider_lacks_a_library(provider: Path, library: str, product: str) -> None:
    finding = why_not_cuda(FakeLoader(only=[], libraries={provider.name: lacking(library)}), provider)
    assert finding.library == library
    assert finding.reason.startswith(f"{library} ({product}) was not found; install {product} or the extra 'cuda'")
    assert finding.found is None


@pytest.mark.parametrize(
    ("library", "there", "words", "wanted", "found"),
    [
        ("libcublasLt.so.13", "libcublasLt.so.12", "CUDA 13 is needed", "13", "12"),
        ("libcudnn.so.9", "libcudnn.so.8", "cuDNN 9 is needed", "9", "8"),
        ("libcufft.so.12", "libcufft.so.11", "CUDA 13 is needed", "13", "12"),
    ],
)
def test_another_major_version_is_told(
    provider: Path, library: str, there: str, words: str, wanted: str, found: str
) -> None:
    loader = FakeLoader(only=[there], libraries={provider.name: lacking(library)})
    finding = why_not_cuda(loader, provider)
    assert words in finding.reason
    assert f"but {words.split()[0]} {found} was found" in finding.reason
    assert (finding.library, finding.wanted, finding.found) == (library, wanted, found)


def test_curand_keeps_its_number_so_no_other_is_looked_for(provider: Path) -> None:
    loader = FakeLoader(only=["libcurand.so.9"], libraries={provider.name: lacking("libcurand.so.10")})
    finding = why_not_cuda(loader, provider)
    assert (finding.library, finding.wanted, finding.found) == ("libcurand.so.10", "13", None)


def test_a_library_that_is_needed_only_later(provider: Path) -> None:
    finding = why_not_cuda(FakeLoader(libraries={"libcudnn.so.9": lacking("libcudnn.so.9")}), provider)
    assert finding.library == "libcudnn.so.9"
    assert "cuDNN 8 was found" in finding.reason  # the stand-in loads everything else


def test_words_of_the_loader_that_are_not_known_are_kept_without_folders(provider: Path) -> None:
    error = "/opt/secret/libonnxruntime_providers_cuda.so: undefined symbol: _ZN4core"
    finding = why_not_cuda(FakeLoader(libraries={provider.name: error}), provider)
    assert finding.reason.endswith("libonnxruntime_providers_cuda.so: undefined symbol: _ZN4core")
    assert "secret" not in finding.reason


def test_a_library_of_somebody_else(provider: Path) -> None:
    finding = why_not_cuda(FakeLoader(libraries={provider.name: lacking("libnuma.so.1")}), provider)
    assert finding.reason == "libnuma.so.1, which ONNX Runtime's CUDA provider needs, was not found"


def test_all_in_place_passes_on_what_onnx_runtime_said(provider: Path) -> None:
    finding = why_not_cuda(FakeLoader(), provider, error="CUDA failure 46\n at C:\\build\\agent\\cuda_call.cc:129")
    assert finding.reason.endswith("did not start CUDA: CUDA failure 46 at cuda_call.cc:129")
    assert "log" in why_not_cuda(FakeLoader(), provider).reason


FAILED = "[WinError 126] The specified module could not be found"


def test_windows_goes_down_the_imports(windows_provider: Path) -> None:
    loader = FakeLoader(
        windows=True,
        libraries=dict.fromkeys((windows_provider.name, "cublas64_13.dll", "cublasLt64_13.dll"), FAILED),
        only=None,
        needs={
            windows_provider.name: ["api-ms-win-crt-runtime-l1-1-0.dll", "KERNEL32.dll", "cublas64_13.dll"],
            "cublas64_13.dll": ["KERNEL32.dll", "cublasLt64_13.dll"],
        },
        places={"cublas64_13.dll": Path("C:/cuda/cublas64_13.dll")},
    )
    finding = why_not_cuda(loader, windows_provider)
    assert finding.library == "cublasLt64_13.dll"
    assert (finding.wanted, finding.found) == ("13", "12")


def test_windows_blames_the_runtime_of_visual_cpp(windows_provider: Path) -> None:
    loader = FakeLoader(
        windows=True,
        libraries={windows_provider.name: FAILED, "MSVCP140.dll": FAILED},
        needs={windows_provider.name: ["MSVCP140.dll"]},
    )
    assert "Visual C++ Redistributable" in why_not_cuda(loader, windows_provider).reason


def test_windows_without_a_culprit_keeps_the_system_s_words(windows_provider: Path) -> None:
    loader = FakeLoader(windows=True, libraries={windows_provider.name: "[WinError 127] procedure"})
    assert "[WinError 127] procedure" in why_not_cuda(loader, windows_provider).reason


def test_windows_libraries_in_a_circle_end(windows_provider: Path) -> None:
    loader = FakeLoader(
        windows=True,
        libraries={windows_provider.name: FAILED, "a.dll": FAILED},
        needs={windows_provider.name: ["a.dll"], "a.dll": ["a.dll"]},
        places={"a.dll": Path("a.dll")},
    )
    assert why_not_cuda(loader, windows_provider).library == "a.dll"


def test_windows_says_that_a_library_is_of_another_version(windows_provider: Path) -> None:
    loader = FakeLoader(
        windows=True,
        libraries={windows_provider.name: "[WinError 127] procedure"},
        needs={windows_provider.name: ["KERNEL32.dll", "cublasLt64_13.dll"]},
        lacking={"cublasLt64_13.dll": "cublasLtMatmul"},
    )
    finding = why_not_cuda(loader, windows_provider, cure="run: appliance-cli runtime install cuda --from FILE")
    assert finding.library == "cublasLt64_13.dll"
    assert finding.reason == (
        "cublasLt64_13.dll is of another version than ONNX Runtime needs (it has no cublasLtMatmul); "
        "run: appliance-cli runtime install cuda --from FILE"
    )


def test_a_part_of_cudnn_is_told_with_the_cure(windows_provider: Path) -> None:
    loader = FakeLoader(
        windows=True,
        libraries=dict.fromkeys(
            [f"cudnn_graph64_{n}.dll" for n in (6, 7, 8, 9, 10)],
            FAILED,
        ),
    )
    finding = why_not_cuda(loader, windows_provider, cure="do this")
    assert finding.reason == "cudnn_graph64_9.dll (cuDNN 9) was not found; do this"
    assert (finding.library, finding.wanted) == ("cudnn_graph64_9.dll", "9")


def test_the_compiler_of_cuda_is_told_by_the_name_of_its_file(windows_provider: Path) -> None:
    loader = FakeLoader(windows=True, libraries={"nvrtc64_130_0.dll": FAILED})
    assert why_not_cuda(loader, windows_provider).reason == (
        "nvrtc64_130_0.dll (CUDA 13) was not found; install CUDA 13 or the extra 'cuda'"
    )


def test_a_library_that_is_there_but_lacks_another(windows_provider: Path) -> None:
    loader = FakeLoader(
        windows=True,
        libraries=dict.fromkeys(["cudnn_ops64_9.dll", "zlibwapi.dll"], FAILED),
        places={"cudnn_ops64_9.dll": Path("cudnn_ops64_9.dll")},
        needs={"cudnn_ops64_9.dll": ["KERNEL32.dll", "zlibwapi.dll"]},
    )
    finding = why_not_cuda(loader, windows_provider)
    assert finding.reason == "zlibwapi.dll, which ONNX Runtime's CUDA provider needs, was not found"


@pytest.mark.parametrize(
    ("windows", "cuda", "least"),
    [(True, 13, "580.88"), (False, 13, "580.65.06"), (True, 12, "528.33"), (False, 12, "525.60.13")],
)
def test_the_driver_to_install_is_named(provider: Path, windows: bool, cuda: int, least: str) -> None:
    none = why_not_cuda(FakeLoader(Driver(missing="not found"), windows=windows), provider, cuda_major=cuda)
    assert none.reason.endswith(f"was not found); install driver {least} or newer")
    old = why_not_cuda(FakeLoader(Driver(version=11080, init=0), windows=windows), provider, cuda_major=cuda)
    assert old.reason.endswith(f"CUDA {cuda}.0 is needed; install driver {least} or newer")


def test_a_finding_is_one_line(provider: Path) -> None:
    for loader in (FakeLoader(), FakeLoader(Driver(missing="x\ny")), FakeLoader(Driver(hung=True))):
        assert "\n" not in why_not_cuda(loader, provider, error="a\nb").reason


# The real one


def test_this_machine_gives_a_finding_quickly(provider: Path) -> None:
    started = time.monotonic()
    finding = why_not_cuda(SystemLoader(), provider)
    assert isinstance(finding, CudaFinding)
    assert time.monotonic() - started < 20
    if ctypes.util.find_library("cuda") is None and sys.platform != "win32":
        assert finding.library == "libcuda.so.1"


def test_a_driver_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_loader, "_ask_driver", lambda: time.sleep(2))
    started = time.monotonic()
    assert SystemLoader(patience=0.1).driver() == Driver(hung=True)
    assert time.monotonic() - started < 1


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler on Linux")
def test_the_loader_of_linux_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a(void) { return 1; }\n")
    (tmp_path / "b.c").write_text("int a(void); int b(void) { return a(); }\n")
    needed, user = tmp_path / "libcublasLt.so.13", tmp_path / "libprovider.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcublasLt.so.13", "-o", needed, tmp_path / "a.c"], check=True
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", user, tmp_path / "b.c", needed], check=True)
    needed.unlink()

    class Here(SystemLoader):
        def driver(self) -> Driver:
            return GOOD

    finding = why_not_cuda(Here(), user)
    assert finding.library == "libcublasLt.so.13"
    assert finding.reason.startswith("libcublasLt.so.13 (CUDA 13) was not found")


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler on Linux")
def test_a_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda.c").write_text(
        "int cuDriverGetVersion(int *v) { *v = 13010; return 0; }\n"
        "int cuInit(unsigned f) { return 0; }\n"
        "int cuDeviceGetCount(int *n) { *n = 2; return 0; }\n"
        "int cuDeviceGet(int *d, int i) { *d = i; return i; }\n"  # the second one does not tell
        "int cuDeviceGetAttribute(int *x, int a, int d) { *x = a == 75 ? 8 : 6; return 0; }\n"
    )
    library = tmp_path / "libcuda.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True)
    (tmp_path / "empty.c").write_text("int nothing;\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libempty.so", tmp_path / "empty.c"], check=True)
    real = cuda_loader._open
    monkeypatch.setattr(cuda_loader, "_open", lambda _name: real(str(library)))
    assert SystemLoader().driver() == Driver(version=13010, init=0, capabilities=((8, 6), (99, 0)))
    monkeypatch.setattr(cuda_loader, "_open", lambda _name: real(str(tmp_path / "libempty.so")))
    assert SystemLoader().driver().missing is not None


def test_the_imports_of_a_windows_program(tmp_path: Path) -> None:
    import ensurepip

    wheels = list((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    if not wheels:
        pytest.skip("this Python has no wheel of pip, which holds small Windows programs")
    with zipfile.ZipFile(io.BytesIO(wheels[0].read_bytes())) as wheel:
        for name in ("t32.exe", "t64.exe"):
            file = tmp_path / name
            file.write_bytes(wheel.read(f"pip/_vendor/distlib/{name}"))
            found = {library.lower(): functions for library, functions in pe.imports(file).items()}
            assert {"GetModuleFileNameW", "CreateProcessW", "ExitProcess"} <= set(found["kernel32.dll"])


def test_a_file_that_is_no_windows_library(tmp_path: Path) -> None:
    for content in (b"", b"MZ", b"\0" * 4096, b"MZ" + b"\0" * 58 + b"\x40\0\0\0" + b"PE\0\0" + b"\0" * 300):
        file = tmp_path / "x.dll"
        file.write_bytes(content)
        assert list(SystemLoader().imports(file)) == []
        assert SystemLoader().lacks("y.dll", file) is None
    assert list(SystemLoader().imports(tmp_path / "nothing.dll")) == []


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler on Linux")
def test_folders_are_looked_in_first(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libmade.so.13", tmp_path / "a.c"], check=True)
    assert SystemLoader().load("libmade.so.13") is not None
    loader = SystemLoader([tmp_path / "not there", tmp_path])
    assert loader.load("libmade.so.13") is None
    assert loader.locate("libmade.so.13") == tmp_path / "libmade.so.13"
