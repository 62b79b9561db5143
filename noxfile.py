"""Everything that can be done with this project: ``nox -l`` lists it. Each session does its own set-up."""

import subprocess
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

LOCKS = Path("build/locks")
COMPILE = [
    "--python-version=3.11",
    "--generate-hashes",
    "--no-header",
    "--no-emit-index-url",
    "--quiet",
]
ANYWHERE = ("pyproject.toml", "--universal")
WINDOWS = ("--python-platform=x86_64-pc-windows-msvc", "--only-binary=:all:")
# for amd64 and arm64: both want the same versions, and a lock holds the hashes of all files of a version
LINUX = ("--python-platform=x86_64-manylinux_2_34", "--only-binary=:all:")
LOCKED = {
    "cpu": (*ANYWHERE, "--extra=cpu"),
    "cuda": (*ANYWHERE, "--extra=cuda"),
    "torch": (*ANYWHERE, "--extra=cpu", "--extra=torch", f"--constraint={LOCKS}/cpu.txt"),
    "tests": (*ANYWHERE, "--extra=cpu", "--group=tests"),
    "lint": (*ANYWHERE, "--extra=cpu", "--group=lint"),
    "windows-cpu": ("pyproject.toml", *WINDOWS, "--extra=cpu", "--extra=genai", "--extra=redis", "--group=freeze"),
    "windows-cuda": ("pyproject.toml", *WINDOWS, "--extra=genai-cuda", "--extra=redis", "--group=freeze-cuda"),
    "windows-cuda-pack": ("build/windows/cuda-pack.in", *WINDOWS, "--constraint=build/locks/cuda.txt"),
    "windows-torch-pack": ("build/windows/torch-pack.in", *WINDOWS, "--constraint=build/locks/cuda.txt"),
    "linux-cpu": (
        "pyproject.toml",
        *LINUX,
        "--extra=cpu",
        "--extra=genai",
        "--extra=redis",
        "--group=freeze",
        f"--constraint={LOCKS}/cpu.txt",
    ),
    "linux-cuda": (
        "pyproject.toml",
        *LINUX,
        "--extra=genai-cuda",
        "--extra=redis",
        "--group=freeze-cuda",
        f"--constraint={LOCKS}/cuda.txt",
    ),
    "windows-python": ("build/windows/python.in", *WINDOWS, "--no-deps"),
}


def install(session: nox.Session, lock: str) -> None:
    """The locked requirements, checked by hash, and the project itself."""
    session.install("--require-hashes", "-r", str(LOCKS / f"{lock}.txt"))
    session.install("--no-deps", "-e", ".")


def torch_for_cpu(session: nox.Session) -> None:
    """PyTorch's build for the CPU, where pip knows a place that has it; else the tests of PyTorch are skipped.

    PyPI's build for Linux is for CUDA and of several GB: ``nox -s torch`` takes that one.
    """
    pip = [sys.executable, "-m", "pip", "--python", session.virtualenv.location, "install", "--quiet"]
    lock = ["--no-deps", "--require-hashes", "-r", LOCKS / "torch-cpu.txt"]
    done = subprocess.run([*pip, *lock], capture_output=True, text=True)
    if done.returncode:
        session.warn("without PyTorch for the CPU, its tests are skipped: " + done.stderr.strip().rpartition("\n")[2])


@nox.session
def run(session: nox.Session) -> None:
    """Start the appliance with its embedded models. Arguments go to it: nox -s run -- --port 8000"""
    install(session, "cpu")
    session.run("python", "main.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Pass the tests. Arguments go to pytest: nox -s tests -- tests/unit"""
    install(session, "tests")
    torch_for_cpu(session)
    if session.posargs:
        session.run("python", "-m", "pytest", *session.posargs)
        return
    # Most tests wait for processes: two at a time, those of a file one after the other. Those with a screen alone.
    failed = False
    for what in (("--ignore=tests/desktop", "-n", "2", "--dist", "loadfile"), ("tests/desktop",)):
        try:
            session.run("python", "-m", "pytest", *what)
        except CommandFailed:
            failed = True
    if failed:
        session.error("some tests failed")


@nox.session
def torch(session: nox.Session) -> None:
    """The tests of PyTorch models with the PyTorch that users get (on Linux for CUDA, several GB)."""
    install(session, "tests")
    session.install("--require-hashes", "-r", str(LOCKS / "torch.txt"))
    tests = [str(path) for path in Path("tests").rglob("test_*torch*.py")]
    session.run("python", "-m", "pytest", *(session.posargs or tests))


@nox.session
def lint(session: nox.Session) -> None:
    """Style (ruff) and the import rules (import-linter)."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict."""
    install(session, "lint")
    session.run("mypy")


@nox.session
def bench(session: nox.Session) -> None:
    """Throughput and latency beside plain ONNX Runtime and a FastAPI thread pool, in one run."""
    install(session, "tests")
    session.run("python", "-m", "tests.bench", *session.posargs)


@nox.session
def locks(session: nox.Session) -> None:
    """Make the hashed requirement files under build/locks anew: for all platforms, for Windows and Linux builds."""
    session.install("uv")
    for name, what in LOCKED.items():
        target = LOCKS / f"{name}.txt"
        session.run("uv", "pip", "compile", *what, *COMPILE, *session.posargs, "-o", str(target))


@nox.session
def build(session: nox.Session) -> None:
    """A wheel and a source distribution under dist/."""
    session.install("uv")
    session.run("uv", "build", "--quiet")
    if sys.platform != "win32":
        session.run("ls", "-l", "dist", external=True)


@nox.session(venv_backend="none")
def windows(session: nox.Session) -> None:
    """The Windows program and its installer, built under Wine (Debian, root): nox -s windows -- --quick"""
    session.run("build/windows/build.sh", *session.posargs, external=True)


@nox.session(venv_backend="none")
def linux(session: nox.Session) -> None:
    """The Debian package (Debian 12, root): nox -s linux -- --arch arm64"""
    session.run("build/linux/build.sh", *session.posargs, external=True)
