"""Make a runtime pack for Windows from NVIDIA's wheels: only the libraries that a runtime loads, and the licences.

    python build/windows/make_pack.py --pack cuda --out FOLDER [--wheels FOLDER]

Needs nothing but Python with pip. The wheels are those of ``build/locks/windows-NAME-pack.txt``, by hash; they are
kept in the folder of ``--wheels``. The same wheels give the same file, byte for byte, with the same zlib. What a pack
is stands in ``appliance/runtimes/manifest.py``, what reads it in ``appliance/runtimes/install.py``.
"""

import argparse
import fnmatch
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

REPO = Path(__file__).resolve().parents[2]
PLATFORM = "windows-x86_64"
FORMAT = 1
CHUNK = 4 << 20

ONNX = (
    "cudart64_*.dll",
    "cublas64_*.dll",
    "cublasLt64_*.dll",
    "cufft64_*.dll",
    "nvrtc64_*.dll",
    "nvrtc-builtins64_*.dll",
    "nvJitLink_*.dll",
    "cudnn64_*.dll",
    "cudnn_*64_*.dll",
)
PACKS = {
    "cuda": ONNX,
    "torch": (*ONNX, "curand64_*.dll", "cusparse64_*.dll", "cusolver64_*.dll", "cusolverMg64_*.dll", "cupti64_*.dll"),
}
"""The libraries of each pack. Each pattern must find something."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", choices=sorted(PACKS), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder for the pack")
    parser.add_argument("--wheels", type=Path, help="folder for the wheels; default: OUT/wheels")
    options = parser.parse_args()
    wheels = download(options.pack, options.wheels or options.out / "wheels")
    pack = make(options.pack, wheels, options.out)
    with pack.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    print(f"{pack}  {pack.stat().st_size >> 20} MiB  sha256 {digest}")


def download(pack: str, folder: Path) -> list[Path]:
    """The wheels of a pack's lock; those that lie there already with the right hash are not fetched again."""
    lock = REPO / "build" / "locks" / f"windows-{pack}-pack.txt"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "--platform", "win_amd64", "--python-version", "3.11", "-d", str(folder)]
    subprocess.run([*command, "-r", str(lock)], check=True)
    wanted = re.findall(r"^([\w.-]+)==([\w.]+)", lock.read_text("utf-8"), re.MULTILINE)
    names = [f"{name.replace('-', '_')}-{version}-*.whl" for name, version in wanted]
    return [next(iter(folder.glob(name))) for name in names]


def make(name: str, wheels: list[Path], out: Path) -> Path:
    """Write the pack; its name tells the versions. The unfinished file has another name."""
    contents = dict(sorted(_named(wheel) for wheel in wheels))
    version = f"{contents['nvidia-cuda-runtime']}_cudnn{contents['nvidia-cudnn-cu13']}"
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{name}-{version}-{PLATFORM}.zip"
    draft = target.with_suffix(".tmp")
    files: list[dict[str, object]] = []
    unseen = set(PACKS[name])
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for wheel in sorted(wheels):
            with zipfile.ZipFile(wheel) as source:
                for info in sorted(source.infolist(), key=lambda info: info.filename):
                    path = _place(wheel, info.filename, PACKS[name], unseen)
                    if path is not None:
                        files.append(_add(archive, path, source, info))
        if unseen:
            raise SystemExit(f"no wheel has {', '.join(sorted(unseen))}")
        manifest = {
            "format": FORMAT,
            "name": name,
            "version": version,
            "platform": PLATFORM,
            "contents": contents,
            "files": files,
        }
        archive.writestr(_entry("manifest.json", 0), json.dumps(manifest, indent=1) + "\n")
    draft.replace(target)
    return target


def _named(wheel: Path) -> tuple[str, str]:
    """Package and version, from the name of its file."""
    name, version = wheel.name.split("-")[:2]
    return name.replace("_", "-"), version


def _place(wheel: Path, member: str, patterns: tuple[str, ...], unseen: set[str]) -> str | None:
    """Where a wheel's file goes in the pack; None: not in it."""
    path = PurePosixPath(member)
    if path.parent.name == "licenses" and path.parent.parent.name.endswith(".dist-info"):
        return f"licenses/{_named(wheel)[0]}-{path.name}"
    for pattern in patterns:
        if fnmatch.fnmatchcase(path.name, pattern):
            unseen.discard(pattern)
            return f"bin/{path.name}"
    return None


def _entry(path: str, size: int) -> zipfile.ZipInfo:
    """Without the time and the rights of the machine that makes it."""
    info = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    info.create_system = 3
    info.file_size = size
    return info


def _add(archive: zipfile.ZipFile, path: str, source: zipfile.ZipFile, info: zipfile.ZipInfo) -> dict[str, object]:
    digest = hashlib.sha256()
    with source.open(info) as stream, archive.open(_entry(path, info.file_size), "w") as target:
        _copy(stream, target, digest)
    return {"path": path, "size": info.file_size, "sha256": digest.hexdigest()}


def _copy(stream: IO[bytes], target: IO[bytes], digest: "hashlib._Hash") -> None:
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
        target.write(chunk)


if __name__ == "__main__":
    main()
