"""Runs checks one after the other, each in a thread with a time limit: one that throws or hangs has failed."""

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from appliance.selftest.context import Context, Lacking
from appliance.selftest.report import Finding, Line, failed

_LEAST_S = 0.05


class Check(msgspec.Struct, frozen=True):
    """`work` looks and tells. After `limit_s` seconds it is not waited for any longer."""

    name: str
    limit_s: float
    work: Callable[[Context], Finding]


def run(
    checks: Sequence[Check],
    context: Context,
    total_s: float,
    on_line: Callable[[Line], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Line, ...]:
    """All lines, in order, within about `total_s` seconds; `on_line` gets each as its check ends.

    A check that comes to its turn when the time is over has failed, unseen.
    """
    end, lines = clock() + total_s, []
    for check in checks:
        started = clock()
        limit = min(check.limit_s, end - started)
        finding = _look(check, context, limit) if limit > _LEAST_S else failed("not looked at: the time was over")
        line = Line(
            check=check.name,
            verdict=finding.verdict,
            found=finding.found,
            cure=finding.cure,
            seconds=round(clock() - started, 2),
        )
        lines.append(line)
        on_line(line)
    return tuple(lines)


def _look(check: Check, context: Context, limit: float) -> Finding:
    result: list[Finding] = []

    def work() -> None:
        try:
            result.append(check.work(context))
        except Lacking as error:
            result.append(failed(str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a check meets is its finding
            result.append(failed(f"{type(error).__name__}: {error}"))

    # A daemon: it must not hold up the end of the program.
    thread = threading.Thread(target=work, name=f"selftest-{check.name}", daemon=True)
    thread.start()
    thread.join(limit)
    return result[0] if result else failed(f"it did not end within {limit:.0f} s")
