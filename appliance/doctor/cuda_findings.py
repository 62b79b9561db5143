"""Driver, cards, CUDA, cuDNN, libraries, execution providers. Pure.

Each cause is told where it belongs, in the words of ``system.cuda``; the lines that only suffer from it refer to it.
"""

from collections.abc import Iterator

from appliance.doctor.facts import Devices, Facts, Library, Native, Trial
from appliance.doctor.machine_findings import built_for_cuda
from appliance.doctor.report import Line, Verdict
from appliance.system import paths
from appliance.system.cuda import EXTRA, CudaFinding, Part
from appliance.system.devices import DeviceReading

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_CHECKS: dict[Part, str] = {
    "build": "program",
    "driver": "driver",
    "device": "device",
    "CUDA": "CUDA",
    "cuDNN": "cuDNN",
    "provider": "library",
    "start": "provider",
}
"""Part of a finding → the check under which it is told."""


def lines(facts: Facts) -> Iterator[Line]:
    """From the driver up to the providers."""
    native = facts.native
    if native is not None:
        yield _driver(facts, native)
        yield from _devices(facts, native)
        yield from _products(facts, native)
        yield from _libraries(facts, native)
        yield from _tensorrt(native)
    yield from _providers(facts)


def _wanted(facts: Facts) -> bool:
    """Whether a fault of CUDA is one of the appliance's."""
    return facts.chosen.cuda or (not facts.chosen.cpu_only and built_for_cuda(facts))


def _works(facts: Facts) -> bool:
    """Whether CUDA ran the model, on each card, whatever else was found."""
    tried = _tried(facts)
    return bool(tried) and all(t.ran_on and not t.error for t in tried)


def _tried(facts: Facts) -> list[Trial]:
    return [trial for trial in (facts.engine.trials if facts.engine else ()) if trial.provider == CUDA]


def _fault(facts: Facts, *parts: Part) -> CudaFinding | None:
    """What is wrong, if it is about one of these parts."""
    fault = facts.native.fault if facts.native else None
    return fault if fault is not None and fault.part in parts and not _works(facts) else None


def _line(facts: Facts, check: str, words: str, cure: str = "") -> Line:
    """A fault's line: no failure where nobody wants CUDA."""
    if _wanted(facts):
        return Line(check, "failed", words, cure)
    return Line(check, "ok", f"{words} (not needed here: {_unneeded(facts)})")


def _unneeded(facts: Facts) -> str:
    return f"the setting device is {facts.chosen.device}" if facts.chosen.cpu_only else "built for the CPU"


def _split(fault: CudaFinding) -> tuple[str, str]:
    """What is wrong, and what to do: the reason has both."""
    words, _, cure = fault.reason.partition("; ")
    return words, cure


def _driver(facts: Facts, native: Native) -> Line:
    fault, driver = _fault(facts, "driver"), native.driver
    least = native.least_driver if facts.board is None else None
    if fault is not None:
        words, cure = _split(fault)
        if facts.board is not None:  # its driver is JetPack's own
            cure = "see the line 'JetPack'"
        return _line(facts, "driver", words, cure or "restart the computer, or install the driver anew")
    if driver.missing is not None:
        cure = f"install driver {least} or newer" if least else ""
        return _line(facts, "driver", "no NVIDIA driver is installed", cure)
    if driver.hung:
        return _line(facts, "driver", "the NVIDIA driver does not answer")
    version = next((r.driver for r in _cards(facts) if r.driver), None)
    words = "NVIDIA's driver" if version is None else version if version.startswith("L4T") else f"driver {version}"
    if driver.version is not None:
        words += f", runs CUDA {driver.version // 1000}.{driver.version % 1000 // 10} and older"
    return Line("driver", "ok", f"{words}{f'; needed: {least}' if least else ''}")


def _devices(facts: Facts, native: Native) -> Iterator[Line]:
    """Each card that CUDA shows; or why there is none, or not the one that is wanted."""
    fault, devices = _fault(facts, "device"), facts.devices or Devices()
    if fault is not None:
        words, cure = _split(fault)
        place, better = _session(facts, native)
        yield _line(facts, "device", f"{words}{place}", cure or better or _device_cure(fault, devices))
    hidden = ""
    if devices.visible is not None and 0 < len(native.driver.capabilities) < devices.cards:
        shown = f"{len(native.driver.capabilities)} of {devices.cards} cards are shown"
        hidden = f"; {shown} (CUDA_VISIBLE_DEVICES is '{devices.visible}')"
    for number, (major, minor) in enumerate(native.driver.capabilities):
        reading = next((r for r in _cards(facts) if r.id == f"cuda:{number}"), None)
        name = reading.name if reading else "NVIDIA GPU"
        yield Line("device", "ok", f"cuda:{number}: {name}, compute capability {major}.{minor}{hidden}")
        hidden = ""


def _session(facts: Facts, native: Native) -> tuple[str, str]:
    """Where the session may be why there is no card: that, and what to do."""
    session = facts.windows.session if facts.windows else None
    if session is None or native.driver.capabilities or (facts.devices and facts.devices.visible is not None):
        return "", ""
    login = f"start it in a person's session ({paths.command_name()} autostart on)"
    if session.number == 0:
        return "; this is session 0, where services run: a card that drives a display may be kept from them", login
    if session.remote:
        words = f"; this is a Remote Desktop session ({session.name}): some drivers give it no card"
        return words, "sign in at the machine itself, or update the driver"
    return "", ""


def _device_cure(fault: CudaFinding, devices: Devices) -> str:
    if fault.wanted is not None and fault.wanted.startswith("cuda:"):
        return "change the setting device"
    if fault.wanted is not None:
        return "this card cannot be used; set device = cpu"
    if devices.visible is not None:
        return "take that variable out of the environment, or let it name a card"
    return "look with nvidia-smi whether the card is there"


def _products(facts: Facts, native: Native) -> Iterator[Line]:
    """CUDA and cuDNN as a whole, for a build that wants them."""
    for product, major in (("CUDA", native.cuda), ("cuDNN", native.cudnn)):
        rows = [row for row in native.libraries if row.wanted.startswith(f"{product} ")]
        if not rows:
            continue
        fault = _fault(facts, "CUDA") if product == "CUDA" else _fault(facts, "cuDNN")
        loading = [row for row in rows if row.loadable]
        if fault is not None:
            words, cure = _split(fault)
            code = native.code if native.code else next((r.code for r in rows if r.code), None)
            yield _line(facts, product, f"{words}{_code(code)}", cure)
            continue
        version = native.versions.get(product)
        kinds = ", ".join(sorted({row.kind for row in loading})) or "nowhere"
        words = f"{product} {version or major}, {len(loading)} of {len(rows)} libraries load, from: {kinds}"
        if len(loading) == len(rows) or not _wanted(facts):
            yield Line(product, "ok", words)
        else:
            yield Line(
                product, "warning" if _works(facts) else "failed", words, _missing_cure(native, f"{product} {major}")
            )


def _missing_cure(native: Native, wanted: str) -> str:
    return native.cure or f"install {wanted} or the extra '{EXTRA}'"


def _code(code: int | None) -> str:
    return f" (LoadLibrary error {code})" if code else ""


def _libraries(facts: Facts, native: Native) -> Iterator[Line]:
    """Each library, and from which kind of folder; what else the provider needs."""
    fault = _fault(facts, "provider")
    if fault is not None:
        words, cure = _split(fault)
        yield _line(facts, "library", f"{words}{_code(native.code)}", cure or "see docs/troubleshooting.md")
    for row in native.libraries:
        yield _library(facts, native, row)


def _library(facts: Facts, native: Native, row: Library) -> Line:
    words = f"{row.name} ({row.wanted})"
    if row.loadable:
        return Line("library", "ok", f"{words}: from {row.kind}")
    place = "" if row.kind == "missing" else f" (from {row.kind})"
    words = f"{words}: {row.reason or 'it does not load'}{place}{_code(row.code)}"
    if not _wanted(facts):
        return Line("library", "ok", f"{words} (not needed here: {_unneeded(facts)})")
    verdict: Verdict = "warning" if _works(facts) else "failed"
    return Line("library", verdict, words, _missing_cure(native, row.wanted))


def _tensorrt(native: Native) -> Iterator[Line]:
    """No fault of its own: only models whose `providers` name it use it, and these say why they do not."""
    found = native.tensorrt
    if found is None:
        return
    if found.fault is None:
        yield Line("TensorRT", "ok", f"TensorRT {found.version or ''} loads".replace("  ", " "))
    else:
        unneeded = "not needed but for models whose providers name tensorrt"
        yield Line("TensorRT", "ok", f"{found.fault.partition(';')[0]} ({unneeded})")


def _providers(facts: Facts) -> Iterator[Line]:
    """What really ran the model of one node."""
    engine = facts.engine
    if engine is None:
        return
    if engine.fault is not None:
        yield Line("provider", "failed", engine.fault, f"run: {paths.command_name()} selftest")
        return
    for trial in engine.trials:
        yield _cpu(trial) if trial.provider == CPU else _cuda(facts, trial)
    if engine.trials and CUDA not in engine.providers:
        yield from _no_cuda(facts)


def _cpu(trial: Trial) -> Line:
    if trial.error is None:
        return Line("provider", "ok", _ran(trial))
    cure = f"run: {paths.command_name()} selftest"
    return Line("provider", "failed", f"{CPU} did not run a model of one node: {trial.error}", cure)


def _ran(trial: Trial) -> str:
    time = "" if trial.run_ms is None else f" in {trial.run_ms:.2f} ms"
    return f"{trial.provider} ran a model of one node on {trial.ran_on}{time}"


def _cuda(facts: Facts, trial: Trial) -> Line:
    if trial.error is None:
        return Line("provider", "ok", _ran(trial))
    fault = facts.native.fault if facts.native else None
    place = f" on {trial.device}" if len(_tried(facts)) > 1 else ""
    words = f"{CUDA} did not run a model of one node{place}"
    if fault is not None:
        return _line(facts, "provider", f"{words}: see '{_CHECKS[fault.part]}' above", "mend that first")
    why, _, cure = trial.error.partition("; ")
    if why.startswith("not enough memory"):
        cure = "look at the lines 'memory' below"
    said = f" (it said: {facts.engine.said})" if facts.engine and facts.engine.said else ""
    return _line(facts, "provider", f"{words}: {why}{said}", cure or "see docs/troubleshooting.md")


def _no_cuda(facts: Facts) -> Iterator[Line]:
    """The build has no CUDA: does that matter?"""
    words = f"{CUDA} is not in this build"
    cards = bool(_cards(facts)) or bool(facts.native and facts.native.driver.capabilities)
    if facts.chosen.cuda:
        fault = facts.native.fault if facts.native else None
        reason, cure = _split(fault) if fault and fault.part == "build" else ("it is the CPU's", "")
        yield Line("provider", "failed", f"{words}, and device is {facts.chosen.device}: {reason}", cure)
    elif cards and not facts.chosen.cpu_only:
        cure = "install the build for CUDA (the extra 'cuda')"
        yield Line("provider", "warning", f"{words}, but there is a card that could run models", cure)
    else:
        yield Line("provider", "ok", words)


def _cards(facts: Facts) -> list[DeviceReading]:
    return [reading for reading in facts.devices.readings if reading.kind != "cpu"] if facts.devices else []
