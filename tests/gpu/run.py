"""The checks in their order, what they need, and the table at the end."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tests.gpu import needs
from tests.gpu.lab import Group, Lab, appliance
from tests.gpu.report import Row, crashed, exit_code, line, skipped, summary, table

GROUPS = ("serving", "memory", "death", "speed", "language")
_LEAST_S = 60.0
_KEPT_BYTES = 4 << 20


def groups() -> dict[str, Group]:
    """All of them. PyTorch must be there."""
    from tests.gpu import failures, generation, serving, speed

    found = (serving.GROUP, failures.MEMORY, failures.DEATH, speed.GROUP, generation.GROUP)
    return {group.name: group for group in found}


def run(lab: Lab, wanted: list[Group], deadline: float) -> Iterator[Row]:
    """All checks of the groups. A fault of one is a row, and the others go on; none begins too near the deadline."""
    for group in wanted:
        if why := group.why_not(lab):
            yield skipped(f"group {group.name}", why)
            continue
        if time.monotonic() > deadline - _LEAST_S:
            yield skipped(f"group {group.name}", "no time is left (--limit-s)")
            continue
        try:
            with appliance(lab, group) as server:
                for check in group.checks:
                    try:
                        yield from check(lab, server)
                    except Exception as error:
                        yield crashed(f"{group.name}: {check.__name__}", error)
        except Exception as error:
            yield crashed(f"group {group.name}: an appliance with its models", error)


def unmet(machine: needs.Machine, device: str) -> str | None:
    """Why nothing can be checked on this device, or None."""
    if not machine.torch.told:
        return machine.torch.why
    if device == "cpu":
        return None
    index = int(device.partition(":")[2] or 0)
    told = machine.torch.told
    if index >= len(told["devices"]):
        why = told["why"] or f"PyTorch {told['version']} sees {len(told['devices'])} GPUs"
        return f"there is no {device}: {why}. To try the checks without one: --device cpu"
    return None


def main(about: str) -> int:
    """``about``: what the command's help says. The appliance can be started (``needs.fault``)."""
    arguments = _arguments(about)
    console = Console(width=min(160, Console().width) if sys.stdout.isatty() else 140)
    started = time.monotonic()
    machine = needs.look()
    for name, runtime in (("torch", machine.torch), ("onnxruntime", machine.onnx), ("genai", machine.genai)):
        print(f"{name}: {json.dumps(runtime.told) if runtime.told else runtime.why}", flush=True)
    if why := unmet(machine, arguments.device):
        print(f"nothing is checked: {why}", flush=True)
        return 2
    every = groups()
    wanted = [every[name] for name in arguments.only]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lab = Lab(arguments.device, Path(folder), machine)
        for row in run(lab, wanted, started + arguments.limit_s):
            rows.append(row)
            print(f"{time.monotonic() - started:5.0f} s  {line(row)}", flush=True)
        if arguments.out:
            _keep(lab, arguments.out, rows)
    name = machine.torch.told["devices"][int(lab.device.partition(":")[2])]["name"] if lab.gpu else "no GPU"
    console.print(table(rows, f"{lab.device}: {name}; {time.monotonic() - started:.0f} s"))
    console.print(summary(rows))
    return exit_code(rows)


def _keep(lab: Lab, out: Path, rows: list[Row]) -> None:
    """The rows as JSON, and what the appliances and their engines printed."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "rows.json").write_text(json.dumps([row._asdict() for row in rows], indent=1), encoding="utf-8")
    for group in sorted(path for path in lab.folder.iterdir() if path.is_dir()):
        logs = [group / "server.log", *sorted((group / "state").rglob("*.log"))]
        with (out / f"{group.name}.log").open("wb") as kept:
            for log in logs:
                kept.write(f"==== {log.name}\n".encode() + log.read_bytes()[-_KEPT_BYTES:])


def _arguments(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:0, cuda:1 …; cpu: the same with small sizes")
    parser.add_argument("--only", default=",".join(GROUPS), type=_names, help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--out", type=Path, help="a folder for rows.json and the logs")
    parser.add_argument("--limit-s", type=float, default=480, help="no group begins in its last minute")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in GROUPS]:
        raise argparse.ArgumentTypeError(f"there is no group {', '.join(unknown)}")
    return names
