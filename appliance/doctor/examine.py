"""Looking at this machine, from the first probe to the report."""

import time
from datetime import UTC, datetime

from appliance import __version__
from appliance.doctor import report
from appliance.doctor.findings import findings
from appliance.doctor.gather import Probes, gather
from appliance.doctor.machine import Machine, chosen
from appliance.doctor.report import Report
from appliance.settings import Settings


def examine(settings: Settings, fault: str | None = None, probes: Probes | None = None) -> Report:
    """Look at this machine, within about 100 seconds. ``fault``: why the settings could not be read (``settings`` are
    the defaults then). Nothing is raised."""
    started, at = time.monotonic(), datetime.now(UTC)
    lines = findings(gather(chosen(settings, fault), probes or Machine(settings)))
    return Report(
        version=__version__,
        started=at.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - started, 1),
        passed=report.passed(lines),
        checks=lines,
    )
