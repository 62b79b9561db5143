"""Facts → lines. Pure; the parts are in the modules beside this one."""

from collections.abc import Iterator

from appliance.doctor import cuda_findings, jetson_findings, machine_findings, place_findings
from appliance.doctor.facts import Facts
from appliance.doctor.report import Line, Verdict

_UNSEEN = {
    "system": "system",
    "build": "program",
    "native": "libraries",
    "engine": "engine",
    "devices": "memory",
    "port": "port",
    "folders": "folder",
    "windows": "session",
    "power": "power",
    "board": "board",
}
"""Probe → the check that is told in place of those that it would have given."""


def findings(facts: Facts) -> tuple[Line, ...]:
    """All lines, in the order in which a person should mend things."""
    return tuple(_lines(facts))


def _lines(facts: Facts) -> Iterator[Line]:
    yield from machine_findings.system(facts)
    yield from jetson_findings.lines(facts)
    yield from cuda_findings.lines(facts)
    yield from machine_findings.memory(facts)
    yield from machine_findings.session(facts)
    yield from machine_findings.power(facts)
    yield from place_findings.port(facts)
    yield from place_findings.folders(facts)
    yield from place_findings.paths(facts)
    yield from place_findings.scanners(facts)
    for probe, why in facts.unknown.items():
        verdict: Verdict = "failed" if probe in ("engine", "native") else "warning"
        yield Line(_UNSEEN[probe], verdict, f"could not be looked at: {why}", "run the doctor again")
