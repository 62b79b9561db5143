"""The real probes: this machine, with the settings of a person."""

import asyncio
import contextlib
import os
import platform
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path

import httpx
import platformdirs
import psutil

from appliance import __version__
from appliance.doctor import native, trial
from appliance.doctor.facts import (
    Build,
    Chosen,
    Devices,
    Engine,
    Folder,
    Native,
    Port,
    Power,
    Role,
    System,
    Windows,
)
from appliance.settings import Settings
from appliance.system import devices, gpu_users, jetson, paths, ports, windows_only
from appliance.system.devices_host import process_tree
from appliance.system.instance import find_running
from appliance.system.long_paths import shown
from appliance.system.writable import write_fault

_PACKAGES = ("onnxruntime", "onnxruntime-gpu")
_NATIVE_S, _ENGINE_S = 35.0, 60.0  # less than what `gather` allows, so that they can say themselves what is late
_ANSWER_S = 3.0
_MOST_ENTRIES, _MOST_S = 5_000, 5.0  # of a models folder that are looked at, and for how long


def chosen(settings: Settings, fault: str | None = None) -> Chosen:
    """What counts of the settings."""
    return Chosen(
        device=settings.device,
        host=settings.host,
        port=settings.port,
        memory_fraction=settings.memory_fraction,
        cpu_memory_fraction=settings.cpu_memory_fraction,
        memory_reserve_bytes=settings.memory_reserve_bytes,
        fault=fault,
    )


class Machine:
    """See ``Probes``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state = settings.state_folder()
        self._tried, self._works = threading.Event(), False
        self._index = 0  # of the card that is asked why it does not run

    def system(self) -> System:
        return System(
            text=_system_text(),
            windows=windows_only.HERE,
            container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        )

    def build(self) -> Build:
        found = {}
        for name in _PACKAGES:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
        return Build(version=__version__, python=platform.python_version(), frozen=paths.frozen(), packages=found)

    def native(self) -> Native:
        """After the engine: so no two processes are on the card, and what it found out need not be asked again."""
        self._tried.wait(_ENGINE_S)
        with tempfile.TemporaryFile() as said:
            return native.ask(self._state, self._index, self._works, _NATIVE_S, said)

    def engine(self) -> Engine:
        try:
            indexes = _cards(self._settings.device)
            self._index = indexes[0]
            found = asyncio.run(trial.try_out(self._state, indexes, _ENGINE_S))
            tried = [one for one in found.trials if one.provider == trial.CUDA]
            bad = [index for index, one in zip(indexes, tried, strict=False) if one.error]
            self._works, self._index = bool(tried) and not bad, (bad or indexes)[0]
            return found
        finally:
            self._tried.set()

    def devices(self) -> Devices:
        running = find_running(self._state, self._settings.port)
        ours = process_tree() | (process_tree(running.pid) if running else set())
        users, cards = gpu_users.look()
        probe = devices.detect()
        try:
            return Devices(
                readings=tuple(probe.read(ours)),
                users=users,
                ours=tuple(sorted(ours)),
                cards=cards,
                visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
                running=running is not None,
            )
        finally:
            probe.close()

    def port(self) -> Port:
        host, port = self._settings.host, self._settings.port
        running = find_running(self._state, port)
        if running is not None:
            return Port(url=running.url, pid=running.pid, answers=_answers(f"{running.url}/health"))
        try:
            ports.listen(host, port).close()
        except OSError as error:
            return Port(
                error=error.strerror or str(error),
                owner=ports.owner_of(port),
                other=_is_appliance(f"http://{host}:{port}/v2"),
                reserved=windows_only.reserved_ports(),
            )
        return Port()

    def folders(self) -> tuple[Folder, ...]:
        state, models = self._state, self._settings.models_folder()
        wanted: tuple[tuple[Role, Path], ...] = (("state", state), ("logs", state / "logs"), ("models", models))
        found = [_folder(role, folder) for role, folder in wanted]
        program = paths.program_folder()
        return (*found, Folder(role="program", path=str(program), network=windows_only.on_network(program)))

    def windows(self) -> Windows | None:
        if not windows_only.HERE:
            return None
        clouds = {os.environ.get(name, "") for name in ("OneDrive", "OneDriveConsumer", "OneDriveCommercial")}
        own = (
            platformdirs.user_documents_dir(),
            platformdirs.user_desktop_dir(),
            platformdirs.user_pictures_dir(),
        )
        return Windows(
            session=windows_only.session(),
            long_paths=windows_only.long_paths_enabled(),
            code_page=windows_only.code_page(),
            guarded=windows_only.guarded_folders(),
            places={
                "OneDrive": tuple(sorted(clouds - {""})),
                "Downloads": (platformdirs.user_downloads_dir(),),
                "Temp": (tempfile.gettempdir(),),
                "Documents": own,
            },
        )

    def power(self) -> Power:
        sensors = getattr(psutil, "sensors_battery", None)
        battery = sensors() if sensors is not None else None
        plan = windows_only.power_plan()
        if battery is None:
            return Power(plan=plan)
        return Power(battery=battery.percent, plugged=battery.power_plugged, plan=plan)

    def board(self) -> jetson.Board | None:
        return jetson.look()


def _cards(policy: str) -> list[int]:
    """The cards to try: those that the setting names, or all where it names none."""
    parts = [part.strip() for part in policy.split(",")]
    named = [part for part in parts if part.startswith("cuda")]
    if parts == ["auto"]:
        probe = devices.detect()
        try:
            named = [reading.id for reading in probe.read() if reading.id.startswith("cuda:")]
        finally:
            probe.close()
    return [int(card.partition(":")[2] or 0) for card in named] or [0]


def _system_text() -> str:
    """ "Windows 11 10.0.26100 (AMD64)", "Debian GNU/Linux 12 (bookworm), Linux 6.1.0 (x86_64)"."""
    kernel = f"{platform.system()} {platform.release()}"
    if windows_only.HERE:
        return f"{kernel} {platform.version()} ({platform.machine()})"
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel} ({platform.machine()})"
    return f"{kernel} ({platform.machine()})"


def _folder(role: Role, folder: Path) -> Folder:
    there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    free = None
    with contextlib.suppress(OSError):
        free = psutil.disk_usage(str(there)).free
    return Folder(
        role=role,
        path=shown(folder),
        fault=write_fault(folder),
        free=free,
        network=windows_only.on_network(folder),
        longest=_longest(folder),
        extended=shown(folder) != str(folder),
    )


def _longest(folder: Path) -> str | None:
    """The longest path in it, or as far as was looked; None for an empty folder."""
    longest, seen, end = "", 0, time.monotonic() + _MOST_S
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            longest = max(longest, os.path.join(parent, name), key=len)  # noqa: PTH118 - thousands of them
        seen += len(folders) + len(files)
        if seen > _MOST_ENTRIES or time.monotonic() > end:
            break
    return shown(longest) if longest else None


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=_ANSWER_S, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _is_appliance(url: str) -> bool:
    """Asked without a key: nobody knows yet who would get it. One that wants a key says so in its own words."""
    try:
        answer = httpx.get(url, timeout=_ANSWER_S, trust_env=False)
        told = answer.json()
        if not isinstance(told, dict):
            return False
        return told.get("name") == "inference-appliance" or told.get("code") == "unauthorized"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return False
