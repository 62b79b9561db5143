"""What the commands ``appliance runtime …`` do: runtime packs in the state folder, and where libraries come from."""

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from appliance.errors import PackError
from appliance.runtimes import fetch
from appliance.runtimes.install import free_bytes, install, read, this_platform
from appliance.runtimes.shelf import Installed, Shelf, faults
from appliance.settings import Settings
from appliance.system import cuda_loader, dlls, paths
from appliance.system.cuda_needs import Family


def runtime_install(settings: Settings, name: str, source: str, sha256: str | None) -> int:
    """From a file or an address. Exit code 0 when it is there, 1 with the reason when not."""
    try:
        shelf = _shelf(settings)
        with shelf.alone():
            shelf.sweep()
            if fetch.is_address(source):
                _install_address(shelf, name, source, sha256)
            else:
                _install_file(shelf, name, Path(source), sha256)
    except PackError as error:
        return _refused(error)
    return 0


def runtime_list(settings: Settings, as_json: bool) -> int:
    """The installed packs."""
    packs = _shelf(settings).installed()
    if as_json:
        rows = [
            {
                "name": pack.name,
                "version": pack.version,
                "platform": pack.manifest.platform if pack.manifest else None,
                "bytes": pack.manifest.size if pack.manifest else None,
                "contents": pack.manifest.contents if pack.manifest else {},
                "error": pack.fault,
            }
            for pack in packs
        ]
        print(json.dumps(rows, indent=2))  # noqa: T201
        return 0
    if not packs:
        print("no runtime pack is installed")  # noqa: T201
        return 0
    table = Table("pack", "version", "size", "contents")
    for pack in packs:
        found = pack.manifest
        if found is None:
            table.add_row(pack.name, pack.version, "", f"[red]{escape(pack.fault or '')}[/]")
        else:
            contents = ", ".join(f"{package} {version}" for package, version in found.contents.items())
            table.add_row(pack.name, pack.version, f"{found.size >> 20} MiB", escape(contents))
    Console().print(table)
    return 0


def runtime_verify(settings: Settings, name: str | None) -> int:
    """Read all files again. Exit code 1 if one is not as it should be."""
    try:
        packs = _shelf(settings).find(name) if name else _shelf(settings).installed()
    except PackError as error:
        return _refused(error)
    bad = 0
    for pack in packs:
        wrong = _verify(pack)
        bad += bool(wrong)
        print(f"{pack.folder.name}: {'; '.join(wrong) if wrong else 'whole'}")  # noqa: T201
        if wrong:
            again = f"{paths.command_name()} runtime install {pack.name} --from FILE"
            print(f"install it again: {again}")  # noqa: T201
    if not packs:
        print("no runtime pack is installed")  # noqa: T201
    return 1 if bad else 0


def runtime_remove(settings: Settings, name: str, version: str | None) -> int:
    """All installed versions of a pack, or one."""
    try:
        shelf = _shelf(settings)
        with shelf.alone():
            for pack in shelf.find(name, version):
                shelf.remove(pack)
                print(f"removed: {pack.folder.name}")  # noqa: T201
    except PackError as error:
        return _refused(error)
    return 0


def runtime_libraries(settings: Settings, family: Family, as_json: bool) -> int:
    """Which libraries an engine would take from where. They are loaded here to see whether they can be.

    Exit code 1 if one is missing or does not load.
    """
    packs = paths.runtimes(settings.state_folder())
    libraries = dlls.prepare(family, packs, dlls.onnxruntime_version())
    rows = libraries.report(cuda_loader.SystemLoader(libraries.folders()))
    if as_json:
        told = [
            {
                "name": row.name,
                "wanted": row.wanted,
                "kind": row.kind,
                "file": str(row.file) if row.file else None,
                "loadable": row.loadable,
                "reason": row.reason,
            }
            for row in rows
        ]
        print(json.dumps(told, indent=2))  # noqa: T201
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("library", "wanted", "from"):
            table.add_column(column, no_wrap=True)
        table.add_column("verdict")
        for row in rows:
            verdict = "[green]loads[/]" if row.loadable else f"[red]{escape(row.reason or '')}[/]"
            table.add_row(row.name, row.wanted, row.kind, verdict)
        Console().print(table)
        lacking = any(row.wanted.startswith("CU") and not row.loadable for row in rows)
        if lacking and family == "onnx" and (cure := dlls.cure()):
            print(cure)  # noqa: T201
    return 0 if all(row.loadable for row in rows) else 1


def _install_address(shelf: Shelf, name: str, address: str, sha256: str | None) -> None:
    with fetch.open_client() as client, _progress("downloading") as (bar, task):
        download = fetch.Download(address, shelf.folder / ".downloads", sha256, client=client, free=free_bytes)
        file = download.run(lambda there, total: bar.update(task, completed=there, total=total))
    try:
        _install_file(shelf, name, file, None)
    except PackError as error:
        if "damaged" in error.message or "no runtime pack" in error.message:
            download.forget()
        raise
    download.forget()


def _install_file(shelf: Shelf, name: str, file: Path, sha256: str | None) -> None:
    if sha256 is not None:
        try:
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise PackError(f"{file} cannot be read: {error.strerror}") from None
        if found != sha256:
            raise PackError(f"{file.name} has another SHA-256 than was asked for ({found})")
    size = read(file).size
    with _progress("unpacking") as (bar, task):
        bar.update(task, total=size)
        manifest, fresh = install(
            file, shelf, name, platform=this_platform(), progress=lambda done: bar.advance(task, done)
        )
    print(f"{'installed' if fresh else 'is there already'}: {manifest.folder} ({manifest.size >> 20} MiB)")  # noqa: T201
    if fresh:
        print("the next start of the engine uses it: stop and start the appliance")  # noqa: T201
    for other in shelf.find(name):
        if other.version != manifest.version:
            command = f"{paths.command_name()} runtime remove {name} {other.version}"
            print(f"{other.folder.name} is there too; if no other program needs it: {command}")  # noqa: T201


def _verify(pack: Installed) -> list[str]:
    if pack.manifest is None:
        return [pack.fault or "its manifest is wrong"]
    with _progress(f"reading {pack.folder.name}") as (bar, task):
        bar.update(task, total=pack.manifest.size)
        found = faults(pack.folder, pack.manifest, lambda done: bar.advance(task, done))
        return [f"{file.path} {fault}" for file, fault in found]


@contextmanager
def _progress(what: str) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on standard error; none where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
    quiet = sys.stderr is None or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        yield bar, bar.add_task(what, total=None)


def _shelf(settings: Settings) -> Shelf:
    return Shelf(paths.runtimes(settings.state_folder()))


def _refused(error: PackError) -> int:
    print(f"appliance: {error.message}")  # noqa: T201
    return 1
