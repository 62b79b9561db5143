"""The Linux package without its program: the unit, the settings, what is in the .deb, and the checks on a folder.

That the package is installed, works, is upgraded and removed is shown by ``build/linux/test.sh``.
"""

import configparser
import hashlib
import importlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from appliance.settings import Settings
from appliance.system.autostart import NAME, DesktopEntry

ROOT = Path(__file__).resolve().parents[2]
BUILD, FROM = ROOT / "build" / "linux", ROOT / "installer" / "linux"
UNIT = FROM / "appliance.service"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60)


@needs_systemd
def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    start = "ExecStart=/usr/lib/appliance/appliance"
    assert start in UNIT.read_text()
    unit.write_text(UNIT.read_text().replace(start, f"ExecStart={shutil.which('true')}"))  # it is not installed here
    done = analyze("verify", "--man=no", str(unit))
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, about_it) == (0, [])


@needs_systemd
def test_the_unit_is_no_more_exposed_than_the_page_states() -> None:
    help_text = analyze("--help").stdout
    if "--offline" not in help_text:
        pytest.skip("this systemd-analyze cannot look at a unit that is not loaded")
    stated = re.search(r"exposure (\d\.\d)", (ROOT / "docs" / "linux.md").read_text("utf-8"))
    assert stated
    done = analyze("security", "--offline=true", f"--threshold={round(float(stated[1]) * 10) + 1}", str(UNIT))
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


def test_the_settings_of_the_service_are_valid_and_within_what_it_may_write() -> None:
    values = tomllib.loads((FROM / "settings.toml").read_text("utf-8"))
    settings = Settings(**values)
    state = Path("/var/lib/appliance")
    assert settings.state_folder().is_relative_to(state)
    assert settings.models_folder().is_relative_to(state)
    assert "StateDirectory=appliance\n" in UNIT.read_text()


def test_the_desktop_entry_opens_where_the_service_answers() -> None:
    entry = configparser.ConfigParser(interpolation=None)
    entry.optionxform = str  # type: ignore[assignment,method-assign]
    entry.read(FROM / "appliance.desktop")
    assert entry["Desktop Entry"]["Exec"] == f"xdg-open http://127.0.0.1:{Settings().port}/"


def test_the_icon_of_the_service_gives_way_to_a_program_of_the_users_own(tmp_path: Path) -> None:
    entry = configparser.ConfigParser(interpolation=None)
    entry.optionxform = str  # type: ignore[assignment,method-assign]
    entry.read(FROM / "autostart.desktop")
    assert entry["Desktop Entry"]["Exec"] == "/usr/bin/appliance tray"
    own = DesktopEntry(NAME, tmp_path).file.name  # a user's file of the same name goes before that of the system
    assert f"/etc/xdg/autostart/{own}" in (BUILD / "package.sh").read_text("utf-8")


@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_the_maintainer_scripts_are_posix_shell(name: str) -> None:
    script = FROM / "deb" / name
    assert script.read_text().startswith("#!/bin/sh\nset -e\n")
    shell = shutil.which("dash") or "sh"
    assert subprocess.run([shell, "-n", str(script)], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .deb with a program of this machine in place of the frozen one."""
    missing = [name for name in ("dpkg-deb", "readelf", "bash", "gzip") if shutil.which(name) is None]
    if missing or sys.platform != "linux":
        pytest.skip(f"not installed: {', '.join(missing) or 'Debian tools'}")
    base = tmp_path_factory.mktemp("deb")
    folder = base / "appliance"
    (folder / "_internal").mkdir(parents=True)
    shutil.copy(Path(shutil.which("true") or "/bin/true").resolve(), folder / "appliance")
    (folder / "_internal" / "third-party-licenses.txt").write_text("theirs\n")
    env = {
        **os.environ,
        "ARCH": "arm64",
        "VARIANT": "cpu",
        "DEB_COMPRESSION": "gzip",
        "LINUX_BASE": str(base / "work"),
    }
    subprocess.run(
        [str(BUILD / "package.sh"), str(folder), "1.2~rc1", str(base)], env=env, check=True, capture_output=True
    )
    return base / "appliance_1.2~rc1_arm64.deb"


def test_the_package_says_what_it_is_and_needs(package: Path) -> None:
    def field(name: str) -> str:
        return subprocess.run(["dpkg-deb", "-f", str(package), name], capture_output=True, text=True).stdout.strip()

    assert (field("Package"), field("Version"), field("Architecture")) == ("appliance", "1.2~rc1", "arm64")
    needs = field("Depends").split(", ")
    assert needs[0] == "adduser"
    assert needs[1].startswith("libc6 (>= 2.")
    assert "@" not in subprocess.run(["dpkg-deb", "-f", str(package)], capture_output=True, text=True).stdout.replace(
        "appliance@packages", ""
    )


def test_the_package_holds_the_program_its_link_and_its_unit(package: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
    assert (tree / "usr/bin/appliance").readlink() == Path("../lib/appliance/appliance")
    assert os.access(tree / "usr/lib/appliance/appliance", os.X_OK)
    assert (tree / "lib/systemd/system/appliance.service").read_text() == UNIT.read_text()
    conffiles = (tree / "DEBIAN/conffiles").read_text().splitlines()
    assert conffiles == ["/etc/appliance/settings.toml", "/etc/xdg/autostart/inference-appliance.desktop"]
    assert all((tree / name.lstrip("/")).is_file() for name in conffiles)
    assert (tree / "usr/share/doc/appliance/copyright").exists()
    assert (tree / "usr/share/man/man1/appliance.1.gz").exists()
    sums = dict(reversed(line.split("  ", 1)) for line in (tree / "DEBIAN/md5sums").read_text().splitlines())
    files = {
        path.relative_to(tree).as_posix()
        for path in tree.rglob("*")
        if path.is_file() and not path.is_symlink() and path.relative_to(tree).parts[0] not in ("DEBIAN", "etc")
    }
    assert set(sums) == files
    for name, value in sums.items():
        assert hashlib.md5((tree / name).read_bytes(), usedforsecurity=False).hexdigest() == value


def test_everything_in_the_package_belongs_to_root_and_only_root_may_write_it(package: Path, tmp_path: Path) -> None:
    archive = tmp_path / "data.tar"
    with archive.open("wb") as stream:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=stream, check=True)
    with tarfile.open(archive) as tar:
        for entry in tar:
            assert (entry.uid, entry.gid) == (0, 0), entry.name
            assert entry.issym() or entry.mode & 0o022 == 0, entry.name


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BUILD.parent / "windows"))
    monkeypatch.syspath_prepend(str(BUILD))
    names = ("check_elf", "check_folder", "freeze", "system_libraries")
    yield importlib.import_module(names[0])
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("library", "importer", "missing"),
    [
        ("libc.so.6", "a.so", False),
        ("ld-linux-aarch64.so.1", "a.so", False),
        ("libpng16-ab.so.16", "PIL.so", False),  # shipped
        ("libssl.so.3", "_ssl.so", False),  # the system's
        ("libssl.so.1.1", "_ssl.so", True),
        ("libX11.so.6", "a.so", True),
        ("libcudart.so.13", "libonnxruntime_providers_cuda.so", False),
        ("libcufft.so.12", "libonnxruntime-genai-cuda.so", False),
        ("libcudart.so.13", "onnxruntime_pybind11_state.so", True),
        ("libcudart.so.13", "libonnxruntime-genai.so", True),
        ("libnvinfer.so.10", "libonnxruntime_providers_tensorrt.so", False),
    ],
)
def test_a_library_is_shipped_or_in_a_package(checks: ModuleType, library: str, importer: str, missing: bool) -> None:
    assert checks.missing([library], importer, frozenset({"libpng16-ab.so.16"})) == ([library] if missing else [])


def test_the_newest_glibc_counts_by_numbers(checks: ModuleType) -> None:
    said = "Name: GLIBC_2.9  Flags: none\n Name: GLIBC_2.17\n Name: GLIBCXX_3.4.30\n Name: GLIBC_2.4"
    assert checks.newest_glibc(said) == (2, 17)
    assert checks.newest_glibc("nothing") == (0,)


def test_a_file_of_another_machine_is_told(checks: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "a.so"
    file.write_bytes(b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 3, 183) + b"\0" * 44)
    assert checks.is_elf(file)
    assert checks.elf_faults(file, "x86_64", frozenset()) == ["is not for x86_64"]


def test_packages_are_asked_for_once_and_only_where_needed(checks: ModuleType) -> None:
    needed = {"libssl.so.3", "libcrypto.so.3", "libz.so.1", "libc.so.6"}
    assert checks.depends(needed) == ["libssl3 (>= 3.0.0)", "zlib1g (>= 1:1.2.0)"]
