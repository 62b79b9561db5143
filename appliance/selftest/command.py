"""The command: runs the checks, tells each as it ends, writes the report."""

import contextlib
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from appliance import __version__, logs
from appliance.doctor.report import passed, verdict
from appliance.selftest import libraries, machine, report, serving
from appliance.selftest.answers import KNOWN
from appliance.selftest.context import Context
from appliance.selftest.report import Line, Report
from appliance.selftest.runner import Check, run
from appliance.settings import Settings
from appliance.system import paths

TOTAL_S = 160.0
"""For all checks together; what is still running is then stopped within some ten seconds more."""

_FOLDER = "selftest"

CHECKS = (
    Check("settings", 5, machine.settings),
    Check("streams", 5, machine.streams),
    Check("folders", 20, machine.folders),
    Check("paths", 20, machine.long_paths),
    Check("autostart", 15, machine.start_at_login),
    Check("libraries", 40, libraries.libraries),
    Check("engine", 60, serving.engine),
    Check("server", 90, serving.server),
    *(Check(known.model, 35, serving.answer(known)) for known in KNOWN),
    Check("tensors", 35, serving.tensors),
    Check("long path", 45, serving.far_answer(next(known for known in KNOWN if known.model == "segment"))),
    Check("device", 15, machine.device),
    Check("port file", 10, serving.port_file),
    Check("instance", 40, serving.second),
    Check("tray", 25, machine.tray),
    Check("stop", 20, serving.stop),
)


def selftest(settings: Settings, fault: str | None, where: Path | None, as_json: bool) -> int:
    """Run all checks; 0 if none failed (and the report, where one is wanted, could be written), else 1.

    `fault`: why the settings could not be read (`settings` are then the defaults). `where`: the report's folder
    or file. The windowed program, and any without a standard output, always writes one: to the state folder if
    `where` is None.
    """
    console = sys.stdout is not None
    if where is None and (not console or paths.windowed_program()):
        where = settings.state_folder() / _FOLDER
    tell = _teller(sys.stderr if as_json else sys.stdout)
    found = examine(settings, fault, CHECKS, lambda line: tell(report.sentence(line)), TOTAL_S)
    code = 0 if found.passed else 1
    if as_json and console:
        sys.stdout.write(report.json(found).decode())
    tell(f"{verdict(found.checks)} in {found.seconds:.1f} s")
    if where is not None:
        try:
            tell(f"report: {report.write(found, where.absolute())[1]}")
        except OSError as error:
            tell(f"the report cannot be written to {where}: {error.strerror}")
            code = 1
    return code


def examine(
    settings: Settings, fault: str | None, checks: Sequence[Check], on_line: Callable[[Line], None], total_s: float
) -> Report:
    """The report of these checks, in a temporary folder that is gone afterwards."""
    started, at = time.monotonic(), datetime.now(UTC)
    context = Context(settings, Path(tempfile.mkdtemp(prefix="appliance-selftest-")), fault)
    logs.set_up("info", context.folder / "state" / "logs" / "appliance.log", console=False)
    try:
        lines = run(checks, context, total_s, on_line)
        tails = {} if passed(lines) else context.tails()
    finally:
        context.close()
    return Report(
        version=__version__,
        system=platform.platform(),
        python=platform.python_version(),
        program=" ".join(paths.program_command()[:1]),
        frozen=paths.frozen(),
        console=sys.stdout is not None,
        started=at.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - started, 1),
        checks=lines,
        passed=passed(lines),
        logs=tails,
    )


def _teller(stream: object) -> Callable[[str], None]:
    """Lines for the person at the console, if there is one; a console that cannot write a letter gets a '?'."""

    def tell(words: str) -> None:
        if stream is None:
            return
        encoding = getattr(stream, "encoding", None) or "utf-8"
        with contextlib.suppress(OSError, ValueError):  # a console that is gone
            print(words.encode(encoding, "replace").decode(encoding), file=stream, flush=True)  # type: ignore[call-overload]

    return tell
