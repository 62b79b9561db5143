"""What the set-up installs, and what the uninstaller deletes: one list, made from the frozen folder.

    python filelist.py FOLDER OUT VERSION [--also FILE=NAME ...]

writes OUT/files.nsh (included by installer/windows/setup.nsi) and OUT/parts.txt, the names of the program folder's
own entries, by which a later set-up knows what to replace.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

UNINSTALLER = "uninstall.exe"
PARTS = PurePosixPath("_internal/parts.txt")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("version")
    parser.add_argument(
        "--also", action="append", default=[], metavar="FILE=NAME", help="one more file, put under NAME"
    )
    given = parser.parse_args()
    folder = given.folder.resolve()
    given.out.mkdir(parents=True, exist_ok=True)

    files = {PurePosixPath(path.relative_to(folder).as_posix()): path for path in folder.rglob("*") if path.is_file()}
    for more in given.also:
        source, _, name = more.rpartition("=")
        files[PurePosixPath(name)] = Path(source).resolve()
    parts = sorted({name.parts[0] for name in files} | {UNINSTALLER})
    list_file = given.out.resolve() / "parts.txt"
    list_file.write_bytes("".join(f"{part}\r\n" for part in parts).encode("ascii"))  # NSIS reads it a byte a letter
    files[PARTS] = list_file
    size = sum(path.stat().st_size for path in files.values())

    lines = [
        *defines(given.version),
        f"!define SIZE_KB {-(-size // 1024)}",
        f"!define LONGEST {max(len(str(name)) for name in files)}",
        "",
        "!macro EachPart Body",
        *(f'  !insertmacro ${{Body}} "{escaped(part)}"' for part in parts),
        "!macroend",
        "",
        "!macro InstallFiles Place",
        *install(files),
        '  SetOutPath "${Place}"',
        f'  File "{escaped(list_file)}"',
        "!macroend",
        "",
        "!macro RemoveFiles",
        *remove(files),
        "!macroend",
    ]
    (given.out / "files.nsh").write_text("\n".join(lines) + "\n", "utf-8-sig")
    print(f"{len(files)} files, {size / 1e6:.1f} MB, longest path {max(len(str(name)) for name in files)}")
    print("largest:")
    for path in sorted(files.values(), key=lambda path: -path.stat().st_size)[:10]:
        print(f"  {path.stat().st_size / 1e6:7.1f} MB  {next(name for name, at in files.items() if at == path)}")
    return 0


def defines(version: str) -> Iterator[str]:
    """Windows wants four numbers; what a version has beside numbers (``rc1``) does not count there."""
    numbers = [*re.findall(r"\d+", version.partition("+")[0])[:4], "0", "0", "0", "0"][:4]
    yield f"!define VERSION_4 {'.'.join(numbers)}"
    yield f"!define VERSION_MAJOR {numbers[0]}"
    yield f"!define VERSION_MINOR {numbers[1]}"


def escaped(path: object) -> str:
    """In quotes of NSIS. What cannot stand there is refused."""
    text = str(path)
    if any(letter in text for letter in "\"'`\r\n"):
        sys.exit(f"a file name that cannot be installed: {text}")
    return text.replace("$", "$$")


def install(files: dict[PurePosixPath, Path]) -> Iterator[str]:
    """In the order of their names, so that the same folder gives the same set-up."""
    here = None
    for name in sorted(files):
        if name.parent != here:
            here = name.parent
            yield f'  SetOutPath "${{Place}}{windows(here)}"'
        yield f'  File "/oname={escaped(name.name)}" "{escaped(files[name])}"'


def remove(files: dict[PurePosixPath, Path]) -> Iterator[str]:
    """The two programs first, so that none is started meanwhile; folders from within, only if they are empty."""
    for name in sorted(files, key=lambda name: (name.parent != PurePosixPath("."), name)):
        yield f'  !insertmacro RemoveFile "{windows(name).removeprefix(chr(92))}"'
    folders = {parent for name in files for parent in name.parents} - {PurePosixPath(".")}
    for folder in sorted(folders, key=lambda folder: (-len(folder.parts), folder)):
        yield f'  !insertmacro RemoveFolder "{windows(folder).removeprefix(chr(92))}"'


def windows(path: PurePosixPath) -> str:
    """``\\a\\b`` of ``a/b``, nothing of the folder itself."""
    return "" if path == PurePosixPath(".") else "\\" + escaped(path).replace("/", "\\")


if __name__ == "__main__":
    sys.exit(main())
