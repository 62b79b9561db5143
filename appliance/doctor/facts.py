"""What was found out about a machine, before anybody judges it. Plain data; None: it could not be found out."""

from typing import Literal

import msgspec

from appliance.system.cuda import CudaFinding, Driver
from appliance.system.devices import DeviceReading
from appliance.system.dlls import Kind
from appliance.system.gpu_users import GpuUser
from appliance.system.jetson import Board
from appliance.system.windows_only import Session

Role = Literal["state", "logs", "models", "program"]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that count here. ``fault``: why they could not be read; they are the defaults then."""

    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = 11711
    memory_fraction: float = 0.9
    cpu_memory_fraction: float = 0.5
    memory_reserve_bytes: int = 256 << 20
    fault: str | None = None

    @property
    def cuda(self) -> bool:
        """A GPU was asked for."""
        return "cuda" in self.device

    @property
    def cpu_only(self) -> bool:
        """No GPU is wanted: ``cpu``, ``cpu:0,cpu:1``."""
        return self.device.startswith("cpu") and not self.cuda


class System(msgspec.Struct, frozen=True, kw_only=True):
    """``text``: the operating system with its version; ``container``: this is one."""

    text: str
    windows: bool = False
    container: bool = False


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """This program. ``packages``: the builds of ONNX Runtime that are installed, with their versions."""

    version: str
    python: str
    frozen: bool
    packages: dict[str, str]


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """See ``dlls.Found``. ``code``: the number of the error of LoadLibrary, on Windows where it is known."""

    name: str
    wanted: str
    kind: Kind
    loadable: bool
    reason: str | None = None
    code: int | None = None


class TensorRT(msgspec.Struct, frozen=True, kw_only=True):
    """``version``: of what was loaded; ``fault``: why it does not load or is not in the build."""

    version: str | None = None
    fault: str | None = None


class Native(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA's driver and libraries. ``cuda``, ``cudnn``: the majors that the build wants; ``versions``: of what was
    loaded ("CUDA", "cuDNN"); ``fault``: why CUDA would not run, of part "build" for the CPU's build; ``code``: the
    error of LoadLibrary at the provider; ``least_driver``: the lowest that will do; ``cure``: what to do about a
    that is missing, None: the usual; ``tensorrt``: None for the CPU's build."""

    driver: Driver
    libraries: tuple[Library, ...] = ()
    fault: CudaFinding | None = None
    cuda: int = 13
    cudnn: int = 9
    versions: dict[str, str] = {}
    code: int | None = None
    least_driver: str | None = None
    cure: str | None = None
    tensorrt: TensorRT | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A model of one node on a provider. ``device``: that it was to run on; ``ran_on``: the one that ran it, None if
    it did not run; ``error``: what is wrong with it; ``run_ms``: its second run."""

    provider: str
    device: str | None = None
    ran_on: str | None = None
    run_ms: float | None = None
    error: str | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine process started for this. ``fault``: why it does not start; ``said``: the last error that ONNX
    Runtime itself printed."""

    providers: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    fault: str | None = None
    said: str | None = None


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """All devices; who uses the cards; how many cards there are and what CUDA_VISIBLE_DEVICES is. ``running``: an
    appliance runs, and ``used_by_us`` is what it uses."""

    readings: tuple[DeviceReading, ...] = ()
    users: dict[str, tuple[GpuUser, ...]] = {}
    ours: tuple[int, ...] = ()
    cards: int = 0
    visible: str | None = None
    running: bool = False


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """``url``, ``pid``: of the appliance that says it has the port, and whether it ``answers``; ``error``: why it
    cannot be had; ``owner``: who has it; ``other``: an appliance that is not this user's answers; ``reserved``: by
    Windows."""

    url: str | None = None
    pid: int | None = None
    answers: bool = False
    error: str | None = None
    owner: str | None = None
    other: bool = False
    reserved: tuple[tuple[int, int], ...] = ()


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """``fault``: why it cannot be written (the program's need not be); ``free``: bytes of its disk; ``longest``: the
    longest path in it; ``extended``: the appliance spells it so that Windows takes any length."""

    role: Role
    path: str
    fault: str | None = None
    free: int | None = None
    network: bool = False
    longest: str | None = None
    extended: bool = False


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """What only Windows has. ``places``: kind of place ("OneDrive", "Downloads", "Temp", "Documents") → folders."""

    session: Session | None = None
    long_paths: bool | None = None
    code_page: str | None = None
    guarded: bool | None = None
    places: dict[str, tuple[str, ...]] = {}


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """``battery``: its charge in percent where there is one; ``plugged``: on mains; ``plan``: Windows' power plan."""

    battery: float | None = None
    plugged: bool | None = None
    plan: str | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. ``board``: a Jetson's; ``unknown``: probe → why it gave nothing."""

    chosen: Chosen = Chosen()
    system: System | None = None
    build: Build | None = None
    native: Native | None = None
    engine: Engine | None = None
    devices: Devices | None = None
    port: Port | None = None
    folders: tuple[Folder, ...] | None = None
    windows: Windows | None = None
    power: Power | None = None
    board: Board | None = None
    unknown: dict[str, str] = {}
