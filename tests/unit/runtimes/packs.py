"""Made-up runtime packs."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

PLATFORM = "windows-x86_64"
FILES = {
    "bin/cublas64_13.dll": b"cublas" * 1000,
    "bin/cudnn64_9.dll": bytes(range(256)) * 400,
    "licenses/nvidia-cublas-License.txt": b"as is",
}


def entry(path: str, content: bytes) -> dict[str, Any]:
    return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def manifest(holds: dict[str, bytes] = FILES, **changes: Any) -> dict[str, Any]:
    made = {
        "format": 1,
        "name": "cuda",
        "version": "13.5.37",
        "platform": PLATFORM,
        "contents": {"nvidia-cublas": "13.10.0.20"},
        "files": [entry(path, content) for path, content in holds.items()],
    }
    return {**made, **changes}


def pack(file: Path, files: dict[str, bytes] = FILES, told: dict[str, Any] | None = None) -> Path:
    """A pack of these files, with this manifest (None: the right one)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr("manifest.json", json.dumps(told if told is not None else manifest(files)))
    return file
