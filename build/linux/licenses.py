"""Writes the licences of the packages that are frozen into the program:  licenses.py WHEELS OUT

``WHEELS`` is the folder that they were installed into. What only builds is left out.
"""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

ONLY_BUILDS = {"pyinstaller", "pyinstaller-hooks-contrib", "altgraph", "setuptools", "packaging"}


def texts(one: Distribution) -> list[str]:
    """The licence files of a package, else what its metadata says."""
    found = [
        file.locate()
        for file in one.files or []
        if ".dist-info" in file.parts[0]
        and ("licenses" in file.parts or file.name.upper().startswith(("LICEN", "COPYING", "NOTICE", "AUTHORS")))
    ]
    read = [Path(str(path)).read_text("utf-8", "replace").strip() for path in sorted(map(str, found))]
    said = one.metadata.get("License-Expression") or one.metadata.get("License") or "see the package's own page"
    return read or [said]


def main() -> int:
    wheels, out = Path(sys.argv[1]), Path(sys.argv[2])
    packages = {one.name.lower(): one for one in distributions(path=[str(wheels)])}
    python = Path("/usr/share/doc/python3.11/copyright")
    pieces = [
        (
            "Python 3.11",
            [python.read_text("utf-8").strip()] if python.exists() else ["Python Software Foundation License 2"],
        )
    ]
    pieces += [
        (f"{one.name} {one.version}", texts(one)) for name, one in sorted(packages.items()) if name not in ONLY_BUILDS
    ]
    words = "\n\n".join(f"{'=' * 78}\n{name}\n{'=' * 78}\n\n" + "\n\n".join(found) for name, found in pieces)
    out.write_text(words + "\n", "utf-8")
    print(f"licences of {len(pieces)} packages, {len(words) // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
