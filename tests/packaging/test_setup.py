"""The set-up program's own behaviour, with a stand-in of a few kilobytes for the appliance: what is installed,
registered, replaced, put back and removed. The appliance itself is installed in ``test_windows.py``."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.stand_in import GCC, stand_in
from tests.packaging.wine import APP, APPROVED_KEY, RUN_KEY, UNINSTALL_KEY, Wine, make_setup, require, until

require("makensis", GCC, "convert")


@pytest.fixture(scope="module")
def setups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The set-ups that the tests use, by what is special about them."""
    base = tmp_path_factory.mktemp("setups")
    return {
        "1": make_setup(stand_in(base / "1", "1", a="one", old_b="one"), base / "out1", "1.0.0"),
        "2": make_setup(stand_in(base / "2", "2", a="two", new_b="two"), base / "out2", "2.0.0"),
        "broken": make_setup(stand_in(base / "3", "3", trouble=9, a="three"), base / "out3", "3.0.0"),
        "stuck": make_setup(stand_in(base / "4", "4", stuck=1, a="four"), base / "out4", "1.5.0"),
    }


@pytest.fixture
def wine(tmp_path: Path, setups: dict[str, Path]) -> Iterator[Wine]:
    with Wine(tmp_path) as found:
        # Paths of the set-ups are below another folder of the tests' own: make that visible too.
        found.env["WIN_BIND"] = str(setups["1"].parents[2])
        yield found


def install(wine: Wine, setup: Path, *options: str) -> int:
    return wine.run(setup, "/S", *options).returncode


def program(wine: Wine) -> dict[str, str]:
    """The text files of the installed program; an empty text for the others."""
    found = {}
    for path in wine.program.rglob("*"):
        if path.is_file():
            name = path.relative_to(wine.program).as_posix()
            found[name] = path.read_text() if name.startswith("_internal") and "parts" not in name else ""
    return found


OWN = {
    "LICENSE.txt": "",
    "_internal/parts.txt": "",
    "appliance-cli.exe": "",
    "appliance.exe": "",
    "uninstall.exe": "",
}
ONE = OWN | {"_internal/a": "one", "_internal/old/b": "one"}
TWO = OWN | {"_internal/a": "two", "_internal/new/b": "two"}


def asked(wine: Wine) -> list[str]:
    file = wine.drive / "asked.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def test_from_nothing_to_nothing(wine: Wine, setups: dict[str, Path]) -> None:
    before = wine.files()
    assert install(wine, setups["1"]) == 0
    assert program(wine) == ONE
    assert sorted(path.name for path in wine.menu.iterdir()) == [
        "Dashboard.url",
        f"{APP}.lnk",
        f"Uninstall {APP}.lnk",
    ]
    link = (wine.menu / "Dashboard.url").read_text("utf-16")
    assert "URL=http://127.0.0.1:11711/" in link
    there = wine.path(wine.program)
    assert wine.registry(RUN_KEY)[APP] == f'"{there}\\appliance.exe" run'
    entry = wine.registry(UNINSTALL_KEY)
    assert entry["DisplayName"] == APP
    assert entry["DisplayVersion"] == "1.0.0"
    assert entry["Publisher"] and entry["InstallDate"].isdigit()
    assert entry["InstallLocation"] == there
    assert entry["DisplayIcon"] == f"{there}\\appliance.exe"
    assert entry["UninstallString"] == f'"{there}\\uninstall.exe"'
    assert entry["QuietUninstallString"] == f'"{there}\\uninstall.exe" /S _?={there}'
    sizes = [path.stat().st_size for path in wine.program.rglob("*") if path.name not in ("uninstall.exe", "")]
    assert 0 <= int(entry["EstimatedSize"], 16) - sum(s for s in sizes if s != 4096) / 1024 < 8
    assert asked(wine) == ["1 --version"]  # nothing was there to be stopped, and nothing is started

    # The way that waits: the exit code is the result's.
    done = wine.run(wine.program / "uninstall.exe", "/S", f"_?={there}")
    assert done.returncode == 0
    assert not wine.registry(UNINSTALL_KEY)
    assert list(program(wine)) in ([], ["uninstall.exe"])
    until(lambda: not wine.program.exists(), 20, "the uninstaller itself to go")
    assert asked(wine) == ["1 stop --all --timeout 30 --kill"]
    (wine.drive / "asked.txt").unlink(missing_ok=True)
    assert wine.files() == before
    assert wine.mentions() == []


def test_the_usual_way_to_uninstall_leaves_what_is_not_ours(wine: Wine, setups: dict[str, Path]) -> None:
    """A copy of the uninstaller does the work, and the first process ends at once."""
    assert install(wine, setups["1"]) == 0
    (wine.program / "mine.txt").write_text("mine")
    (wine.program / "_internal" / "mine.txt").write_text("mine")
    wine.run(wine.program / "uninstall.exe", "/S", "/PURGE")
    until(lambda: not (wine.program / "uninstall.exe").exists(), 30, "the uninstaller")
    until(lambda: not wine.menu.exists(), 30, "the menu to go")
    assert set(program(wine)) == {"mine.txt", "_internal/mine.txt"}
    assert [line for line in asked(wine) if "purge" in line] == ["1 purge"]


def test_an_upgrade_replaces_all(wine: Wine, setups: dict[str, Path]) -> None:
    assert install(wine, setups["1"]) == 0
    (wine.program / "_internal" / "stale.py").write_text("stale")
    (wine.program / "mine.txt").write_text("mine")
    asked(wine)
    assert install(wine, setups["2"]) == 0
    assert program(wine) == TWO | {"mine.txt": ""}
    assert asked(wine) == ["1 stop --all --timeout 30 --kill", "2 --version"]
    assert wine.registry(UNINSTALL_KEY)["DisplayVersion"] == "2.0.0"
    assert [path.name for path in wine.program.iterdir() if path.name.startswith(".")] == []


def test_options(wine: Wine, setups: dict[str, Path]) -> None:
    """Start at login and start after the installation; what is not asked for stays as it is."""
    for wrong in ("/AUTOSTART=2", "/START=yes", "/DOWNGRADE=", "/LANG=xx"):
        assert install(wine, setups["1"], wrong) == 6, wrong
    assert not wine.program.exists() and asked(wine) == []
    assert install(wine, setups["1"], "/AUTOSTART=0") == 0
    assert APP not in wine.registry(RUN_KEY)
    assert install(wine, setups["1"]) == 0
    assert APP not in wine.registry(RUN_KEY)
    asked(wine)
    assert install(wine, setups["1"], "/AUTOSTART=1", "/START=1") == 0
    assert APP in wine.registry(RUN_KEY)
    until(lambda: "1" in asked(wine), 10, "the start")
    # Switched off with the Task Manager: an upgrade does not switch it on.
    off = "030000000000000000000000"
    wine.run("reg", "add", APPROVED_KEY, "/v", APP, "/t", "REG_BINARY", "/d", off, "/f")
    assert install(wine, setups["2"]) == 0
    assert wine.registry(APPROVED_KEY)[APP] == off


def test_a_folder_of_ones_choice(wine: Wine, setups: dict[str, Path]) -> None:
    """With other things in it; moved from the usual place; and back."""
    chosen = wine.drive / "Tools for all"
    chosen.mkdir()
    (chosen / "mine.txt").write_text("mine")
    assert install(wine, setups["1"]) == 0
    asked(wine)
    assert install(wine, setups["2"], f"/D={wine.path(chosen)}") == 0
    assert asked(wine) == ["1 stop --all --timeout 30 --kill", "2 --version", "1 stop --all --timeout 30 --kill"]
    until(lambda: not wine.program.exists(), 20, "the old place")
    assert wine.registry(UNINSTALL_KEY)["InstallLocation"] == wine.path(chosen)
    assert wine.registry(RUN_KEY)[APP].startswith(f'"{wine.path(chosen)}\\')
    assert (wine.menu / f"{APP}.lnk").exists()
    wine.run(chosen / "uninstall.exe", "/S", f"_?={wine.path(chosen)}")
    until(lambda: [path.name for path in chosen.iterdir()] == ["mine.txt"], 20, "the rest to go")
    assert wine.mentions() == []


def test_a_folder_of_another_program_is_refused(wine: Wine, setups: dict[str, Path]) -> None:
    chosen = wine.drive / "Other"
    (chosen / "_internal").mkdir(parents=True)
    (chosen / "_internal" / "other.dll").write_text("other")
    assert install(wine, setups["1"], f"/D={wine.path(chosen)}") == 8
    deep = "C:\\" + "\\".join(["a-folder-with-a-long-name"] * 10)
    assert install(wine, setups["1"], f"/D={deep}") == 8
    assert [path.name for path in chosen.rglob("*")] == ["_internal", "other.dll"]
    log = next((wine.local / "Temp").glob("*setup.log")).read_text("utf-16")
    assert "exit code 8" in log and "another program" in log


def test_downgrade(wine: Wine, setups: dict[str, Path]) -> None:
    assert install(wine, setups["2"]) == 0
    assert install(wine, setups["1"]) == 3
    assert program(wine) == TWO
    assert install(wine, setups["1"], "/DOWNGRADE=1") == 0
    assert program(wine) == ONE


def test_a_new_version_that_does_not_start_is_taken_back(wine: Wine, setups: dict[str, Path]) -> None:
    assert install(wine, setups["broken"]) == 5
    assert not wine.program.exists()
    assert install(wine, setups["1"]) == 0
    asked(wine)
    assert install(wine, setups["broken"]) == 5
    assert program(wine) == ONE
    assert asked(wine)[1:] == ["3 --version"]
    assert wine.registry(UNINSTALL_KEY)["DisplayVersion"] == "1.0.0"
    assert [path.name for path in wine.program.iterdir() if path.name.startswith(".")] == []


def test_files_that_cannot_be_moved(wine: Wine, setups: dict[str, Path]) -> None:
    """The last of the old parts resists: those that were moved already are put back."""
    assert install(wine, setups["1"]) == 0
    held = wine.program / "uninstall.exe"
    if subprocess.run(["chattr", "+i", held], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        assert install(wine, setups["2"]) == 5
        assert program(wine) == ONE
    finally:
        subprocess.run(["chattr", "-i", held], check=True)
    assert install(wine, setups["2"]) == 0
    assert program(wine) == TWO


def test_a_running_copy_that_does_not_end(wine: Wine, setups: dict[str, Path]) -> None:
    assert install(wine, setups["stuck"]) == 0
    assert install(wine, setups["2"]) == 4
    assert wine.registry(UNINSTALL_KEY)["DisplayVersion"] == "1.5.0"
    assert (wine.program / "_internal" / "a").read_text() == "four"
    assert wine.run(wine.program / "uninstall.exe", "/S", f"_?={wine.path(wine.program)}").returncode == 4
    assert (wine.program / "appliance.exe").exists()


@pytest.mark.parametrize("done", [1, 3, 99])
def test_a_set_up_that_was_cut_off(wine: Wine, setups: dict[str, Path], done: int) -> None:
    """The machine went off after so many renames: the next set-up begins with the old version whole again, which is
    seen by the one that is then refused."""
    assert install(wine, setups["1"]) == 0
    old, new = wine.program / ".appliance-old", wine.program / ".appliance-new"
    parts = (wine.program / "_internal" / "parts.txt").read_text().split()
    old.mkdir()
    new.mkdir()
    for folder in (old, new):
        (folder / "parts.txt").write_text("\r\n".join(parts) + "\r\n")
    (new / "_internal").mkdir()
    for name in ("LICENSE.txt", "appliance.exe", "appliance-cli.exe", "uninstall.exe", "_internal/a"):
        (new / name).write_text("new")
    steps = [(wine.program / part, old / part) for part in parts]
    steps += [(new / part, wine.program / part) for part in parts]
    for source, target in steps[:done]:
        source.rename(target)
    assert install(wine, setups["broken"]) == 5
    assert program(wine) == ONE
    assert install(wine, setups["2"]) == 0
    assert program(wine) == TWO
    assert [path.name for path in wine.program.iterdir() if path.name.startswith(".")] == []


def test_runtime_packs(wine: Wine, setups: dict[str, Path], tmp_path: Path) -> None:
    """Only with a card, and only those that lie beside the set-up."""
    place = setups["1"].parents[2] / "with pack"
    place.mkdir()
    setup = make_setup(stand_in(tmp_path / "program", "1", a="one"), place, "1.0.0", VARIANT="cuda")
    (place / "cuda-13.0-windows-x86_64.zip").write_bytes(b"pack")
    assert install(wine, setup) == 0
    assert asked(wine) == ["1 --version"]
    wine.run("reg", "add", r"HKLM\SYSTEM\CurrentControlSet\Enum\PCI\VEN_10DE&DEV_2684&SUBSYS_0&REV_A1", "/f")
    assert install(wine, setup) == 0
    pack = wine.path(place / "cuda-13.0-windows-x86_64.zip")
    assert asked(wine)[-1] == f"1 runtime install cuda --from {pack}"


def test_same_inputs_same_setup(setups: dict[str, Path], tmp_path: Path) -> None:
    again = make_setup(stand_in(tmp_path / "again", "1", a="one", old_b="one"), tmp_path / "out", "1.0.0")
    assert again.read_bytes() == setups["1"].read_bytes()


def test_signed(wine: Wine, tmp_path: Path, setups: dict[str, Path]) -> None:
    """With a certificate of its own kind: programs, library, set-up and uninstaller verify against it."""
    key, cert, pfx = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "cert.pfx"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=Test Publisher",
         "-addext", "extendedKeyUsage=codeSigning", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )  # fmt: skip
    subprocess.run(
        ["openssl", "pkcs12", "-export", "-inkey", key, "-in", cert, "-out", pfx, "-passout", "pass:secret"],
        check=True,
    )
    (tmp_path / "pass.txt").write_text("secret")
    folder = stand_in(tmp_path / "program", "1", a="one")
    (folder / "_internal" / "ours.dll").write_bytes((folder / "appliance.exe").read_bytes())
    setup = make_setup(folder, tmp_path / "out", "1.0.0", SIGN_PFX=str(pfx), SIGN_PASSFILE=str(tmp_path / "pass.txt"))
    wine.env["WIN_BIND"] = str(tmp_path)
    assert install(wine, setup) == 0
    signed = [setup, *(wine.program / name for name in ("appliance.exe", "appliance-cli.exe", "uninstall.exe"))]
    for file in [*signed, wine.program / "_internal" / "ours.dll"]:
        done = subprocess.run(
            ["osslsigncode", "verify", "-CAfile", cert, "-in", file], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "Signature verification: ok" in done.stdout, (file, done.stdout)
        assert "CN=Test Publisher" in done.stdout
    verdict = subprocess.run(["osslsigncode", "verify", "-in", folder / "appliance.exe"], capture_output=True)
    assert verdict.returncode != 0, "the folder that was given stays as it was"
