"""The check of the native libraries that a CUDA build needs: each is loaded, in a process that ends right away."""

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from appliance.selftest.context import Context
from appliance.selftest.report import Finding, failed, ok, warning
from appliance.system import dlls, paths

_LIMIT_S = 35.0


def libraries(context: Context) -> Finding:
    """Each library that ONNX Runtime's CUDA provider wants, present and loadable; a build for the CPU wants none."""
    if dlls.onnxruntime_version() is None:
        return ok("built for the CPU: none of CUDA's libraries is wanted")
    env = os.environ | {"APPLIANCE_STATE": str(context.settings.state_folder())}
    command = [*paths.program_command(), "runtime", "libraries", "--json"]
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_LIMIT_S,
        check=False,
    )
    try:
        rows = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), "nothing")
        return failed(f"the process that loads them ended with code {done.returncode} and said: {last[:300]}")
    return judge(rows, context.settings.device)


def judge(rows: Sequence[dict[str, Any]], policy: str) -> Finding:
    """The rows of ``appliance runtime libraries --json`` in one line. Pure.

    What does not load is a failure only where CUDA was asked for: else the CPU does it all.
    """
    bad = [row for row in rows if not row["loadable"]]
    kinds = sorted({row["kind"] for row in rows if row["loadable"]})
    if not bad:
        return ok(f"all {len(rows)} load, from: {', '.join(kinds)}")
    words = "; ".join(f"{row['name']} ({row['wanted']}): {row['reason']}" for row in bad)
    tell = failed if "cuda" in policy else warning
    return tell(f"{len(rows) - len(bad)} of {len(rows)} load; {words}", dlls.cure() or "see docs/troubleshooting.md")
