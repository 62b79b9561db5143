"""What a PyTorch file is, found out without PyTorch, and without unpickling or running any of it.

Four kinds of file carry the same endings. Only what is a graph (TorchScript, ``torch.export``) is served; a pickle
may run any code while it is read, and an AOTInductor package is machine code, which only a setting of the server's
lets run. What is inside of the first two is
judged by ``torch_script`` and ``torch_program`` before PyTorch gets the file.
"""

import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from appliance.errors import ModelLoadError
from appliance.models import torch_program, torch_script
from appliance.models.inside import real_inside
from appliance.models.onnx_foreign import guess

Kind = Literal["torchscript", "export", "aotinductor"]

MAX_TEXT_BYTES = 64 << 20
"""The most bytes of code or graph of one file, unpacked. Weights have no limit."""

EXPORT_IT = (
    "export the model: torch.export.save(torch.export.export(model, example_inputs), 'model.pt2'), "
    "or as TorchScript with torch.jit.save(torch.jit.script(model), 'model.pt')"
)

_PICKLE = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
_MEMBERS = 200_000
_FORMAT = "archive_format"
_PROGRAM = "models/model.json"
NATIVE = "data/aotinductor/"
"""Where the compiled models of an AOTInductor package lie, a folder each."""


class Records(Protocol):
    """A view of the archive: names without the one folder that all of them are in."""

    def names(self) -> Sequence[str]: ...

    def read(self, name: str) -> bytes: ...


def inspect(path: Path, root: Path) -> Kind:
    """The kind of the file at ``path``. Opens nothing else, and only a regular file that lies in ``root``.

    Raises ModelLoadError, in words: it is of another kind, damaged, or holds what may not be run.
    """
    name = path.name
    try:
        if real_inside(path, root) is None:
            raise ModelLoadError(f"{name}: a link leads outside of the model's folder")
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelLoadError(f"{name}: it is not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(512)
        if fault := _not_an_archive(head, size):
            raise ModelLoadError(f"{name}: {fault}")
        with zipfile.ZipFile(path) as archive:
            return judge(_Zip(archive), name)
    except FileNotFoundError:
        raise ModelLoadError(f"{name}: the file is missing") from None
    except OSError as error:
        raise ModelLoadError(f"{name}: cannot be read: {error.strerror or 'I/O error'}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, KeyError):
        raise ModelLoadError(f"{name}: it is damaged or cut off; copy or download it again") from None


def judge(records: Records, name: str) -> Kind:
    """The kind of the archive, once all that may run when it is loaded was looked at. Raises ModelLoadError.

    Asked twice: of Python's own reader, and of PyTorch's, which is the one that counts.
    """
    names = records.names()
    if len({n.lower() for n in names}) != len(names):
        # PyTorch's reader takes no notice of case, so what was looked at might not be what it reads.
        raise ModelLoadError(f"{name}: two of its records have one name")
    kind = _kind(records, names, name)
    try:
        if kind == "torchscript":
            torch_script.check(_texts(records, names, ("code/",)), _pickles(records, names))
        elif kind == "export":
            texts = _texts(records, names, (_PROGRAM, *_configs(names)))
            torch_program.check(texts.pop(_PROGRAM), texts)
    except ModelLoadError as error:
        raise ModelLoadError(f"{name}: {error.message}") from None
    return kind


def sniff(path: Path) -> str | None:
    """The ending that a file of this content has: ``.pt``, ``.pt2``; None where it is no archive of PyTorch's.

    Raises nothing: a file that is not what it seems is judged later.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(_Zip(archive).names())
    except (OSError, zipfile.BadZipFile, ModelLoadError, ValueError, NotImplementedError):
        return None
    if _FORMAT in names:
        return ".pt2"
    return ".pt" if "data.pkl" in names else None


def _kind(records: Records, names: Sequence[str], name: str) -> Kind:
    found = set(names)
    if _FORMAT in found:
        if records.read(_FORMAT)[:16].strip() != b"pt2":
            raise ModelLoadError(f"{name}: it is an archive of PyTorch's of an unknown format")
        if any(n.startswith(NATIVE) for n in names):
            return "aotinductor"
        if _PROGRAM not in found:
            raise ModelLoadError(f"{name}: there is no program in it; {EXPORT_IT}")
        others = [n for n in names if n.startswith("models/") and n != _PROGRAM]
        if others:
            raise ModelLoadError(f"{name}: it holds several programs; export one into a file of its own")
        if any(n in found for n in ("data/weights/model.pt", "data/constants/model.pt")):
            raise ModelLoadError(f"{name}: its weights are pickled, as an old PyTorch did; export it again")
        return "export"
    if "serialized_exported_program.json" in found or any(n.startswith("serialized_") for n in names):
        raise ModelLoadError(f"{name}: it is a torch.export program of an old PyTorch; export it again")
    if "constants.pkl" in found and any(n.startswith("code/") for n in names):
        return "torchscript"
    if "data.pkl" in found:
        raise ModelLoadError(
            f"{name}: it is a Python pickle (a checkpoint, a state_dict or a whole module), which is never loaded, "
            f"since reading it may run any code; {EXPORT_IT}"
        )
    raise ModelLoadError(f"{name}: it is a zip archive, but not a PyTorch model")


def _configs(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in names if n.endswith("_config.json"))


def _texts(records: Records, names: Sequence[str], wanted: Sequence[str]) -> dict[str, bytes]:
    """The records whose names begin with one of these."""
    found: dict[str, bytes] = {}
    size = 0
    for name in names:
        if name.startswith(tuple(wanted)) and not name.endswith(".debug_pkl"):
            found[name] = records.read(name)
            size += len(found[name])
            if size > MAX_TEXT_BYTES:
                raise ModelLoadError(f"its code is larger than {MAX_TEXT_BYTES >> 20} MB")
    return found


def _pickles(records: Records, names: Sequence[str]) -> dict[str, bytes]:
    """The records that PyTorch's own unpickler reads, which knows tensors and the file's classes only."""
    return _texts(records, names, [n for n in names if n.endswith(".pkl") and not n.startswith("code/")] or ["\0"])


def _not_an_archive(head: bytes, size: int) -> str | None:
    """Why a file with these first bytes is no zip archive, or None."""
    if size == 0:
        return "the file is empty"
    if head.startswith(b"PK\x03\x04"):
        return None
    if head.startswith(_PICKLE) or head[257:262] == b"ustar":
        return (
            "it is a Python pickle (an old PyTorch file), which is never loaded, since reading it may run any code; "
            + EXPORT_IT
        )
    if head.startswith((b"\x7fELF", b"MZ")):
        return "it is a library of machine code, which is never loaded from a model's folder"
    return (guess(head, size) or "it is not a PyTorch model").replace("not an ONNX model", "not a PyTorch model")


class _Zip:
    """Python's view of the archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        infos = archive.infolist()
        if len(infos) > _MEMBERS:
            raise ModelLoadError(f"it has more than {_MEMBERS} records")
        self._archive = archive
        roots = {info.filename.partition("/")[0] for info in infos}
        # PyTorch's archives have one folder around everything; only its oldest programs have none.
        cut = len(roots.pop()) + 1 if len(roots) == 1 else 0
        self._found = {info.filename[cut:]: info for info in infos}
        self._names = [info.filename[cut:] for info in infos if not info.is_dir()]

    def names(self) -> Sequence[str]:
        return self._names

    def read(self, name: str) -> bytes:
        info = self._found[name]
        if info.file_size > MAX_TEXT_BYTES:
            raise ModelLoadError(f"its code is larger than {MAX_TEXT_BYTES >> 20} MB")
        return self._archive.read(info)
