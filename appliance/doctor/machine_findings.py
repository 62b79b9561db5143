"""The machine itself: system, program, settings, memory, session, power. Pure."""

from collections.abc import Iterator

from appliance.doctor.facts import Devices, Facts
from appliance.doctor.report import Line, Verdict
from appliance.gate.budget import Ledger, Memory, Share
from appliance.system.devices import DeviceReading

_LITTLE = 256 << 20  # bytes; hardly a model fits into less
_TIGHT = 0.5  # of what the device could give


def system(facts: Facts) -> Iterator[Line]:
    """The system, the program, and whether the settings could be read."""
    if facts.system is not None:
        words = facts.system.text + (", in a container" if facts.system.container else "")
        yield Line("system", "ok", words)
    if facts.build is not None:
        yield _program(facts)
    if facts.chosen.fault is not None:
        words = f"{facts.chosen.fault}; going on with the defaults"
        yield Line("settings", "failed", words, "mend the setting named there")


def _program(facts: Facts) -> Line:
    build = facts.build
    assert build is not None
    kind = "frozen" if build.frozen else "from source"
    words = f"version {build.version}, {kind}, Python {build.python}"
    if len(build.packages) > 1:
        cure = "uninstall both (pip uninstall onnxruntime onnxruntime-gpu), then install the one that is wanted"
        return Line("program", "failed", f"{words}; {' and '.join(build.packages)} are both installed", cure)
    engine = facts.engine
    variant = "CUDA" if built_for_cuda(facts) else "the CPU"
    if not build.packages and engine is not None and not engine.providers:
        cure = "install the extra 'cpu' or, for an NVIDIA card, 'cuda'"
        return Line("program", "failed", f"{words}; ONNX Runtime is not installed", cure)
    runtime = ", ".join(f"{name} {version}" for name, version in build.packages.items())
    return Line("program", "ok", f"{words}, built for {variant}{f' ({runtime})' if runtime else ''}")


def built_for_cuda(facts: Facts) -> bool:
    """Whether the build of ONNX Runtime is the one for NVIDIA's cards."""
    if facts.engine is not None and facts.engine.providers:
        return "CUDAExecutionProvider" in facts.engine.providers
    return facts.native is not None and (facts.native.fault is None or facts.native.fault.part != "build")


def memory(facts: Facts) -> Iterator[Line]:
    """What is left for models on each device, by the appliance's own rule."""
    if facts.devices is not None:
        for reading in sorted(facts.devices.readings, key=lambda r: r.id != "cpu"):
            if reading.memory_total is not None and reading.memory_free is not None:
                yield _memory(facts, facts.devices, reading)


def _memory(facts: Facts, devices: Devices, reading: DeviceReading) -> Line:
    chosen, total, free = facts.chosen, reading.memory_total or 0, reading.memory_free or 0
    ours = reading.used_by_us or 0
    fraction = chosen.cpu_memory_fraction if reading.id == "cpu" else chosen.memory_fraction
    ledger = Ledger(Share(fraction, chosen.memory_reserve_bytes))
    ledger.read(Memory(total, free, ours))
    others = max(0, total - free - ours)
    words = f"{reading.id}: {_gib(total - free)} of {_gib(total)} used"
    told = reading.used_by_us is not None or not devices.running
    if told:
        words += f", {_gib(others)} by other programs{_who(devices, reading.id)}"
    words += f"; {_gib(ledger.capacity)} are left for models"
    verdict: Verdict = "ok"
    needed = reading.id == "cpu" or not chosen.cpu_only
    if needed and told and ledger.capacity < ledger.ceiling * _TIGHT:
        verdict = "failed" if ledger.capacity < _LITTLE else "warning"
    cure = "" if verdict == "ok" else "end other programs that use this memory"
    if cure and reading.id != "cpu":
        cure += ", or choose another device (setting device)"
    return Line("memory", verdict, words, cure)


def _who(devices: Devices, device: str) -> str:
    """The largest three of the others."""
    users = [user for user in devices.users.get(device, ()) if user.pid not in devices.ours]
    names = [
        f"{user.name} (pid {user.pid}){'' if user.size is None else f' {_gib(user.size)}'}" for user in users[:3]
    ]
    more = f" and {len(users) - 3} more" if len(users) > 3 else ""
    return f": {', '.join(names)}{more}" if names else ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def session(facts: Facts) -> Iterator[Line]:
    """Windows gives some sessions no card; where the card is missing, the device's line says so."""
    found = facts.windows.session if facts.windows else None
    if found is None:
        return
    if found.number == 0:
        yield Line("session", "ok", "session 0: it runs as a service")
    elif found.remote:
        yield Line("session", "ok", f"session {found.number} ({found.name}), a Remote Desktop session")
    else:
        yield Line("session", "ok", f"session {found.number} ({found.name}), at the machine itself")


def power(facts: Facts) -> Iterator[Line]:
    """Only where there is a battery or a power plan."""
    found = facts.power
    if found is None or (found.battery is None and found.plan is None):
        return
    plan = f", power plan: {found.plan}" if found.plan else ""
    if found.battery is not None and found.plugged is False:
        words = f"on battery, {found.battery:.0f} % left{plan}"
        yield Line("power", "warning", words, "plug it in: on battery the processor and the card run slower")
        return
    words = "on mains" if found.battery is not None else "no battery"
    if found.plan == "power saver":
        yield Line("power", "warning", f"{words}{plan}", "choose the power plan 'balanced' or 'high performance'")
    else:
        yield Line("power", "ok", f"{words}{plan}")


def _readings(facts: Facts) -> tuple[DeviceReading, ...]:
    return facts.devices.readings if facts.devices else ()
