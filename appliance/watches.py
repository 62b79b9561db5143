"""The tasks that look at the machine: has it slept, is a device back, is it short of something?

Part of the composition root.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from appliance import logs
from appliance.engine.supervisor import Supervisor
from appliance.gate.gate import Gate
from appliance.serving.catalog import Catalog
from appliance.serving.comeback import Comeback
from appliance.serving.events import Events
from appliance.serving.remarks import keep
from appliance.serving.resume import Resume
from appliance.system import power
from appliance.system.pressure import Pressure


def watches(
    state: Path,
    gate: Gate,
    engines: Mapping[str, Supervisor],
    events: Events,
    catalog: Catalog,
    notes: list[str],
) -> list[asyncio.Task[None]]:
    """Start them; they run until they are cancelled. ``state``: the state folder; ``engines``: by their ids, as they
    are now; ``notes``: the status's list."""
    resume, pressure = Resume(gate, engines, events, notes), Pressure(state)

    def look() -> list[str]:
        fault = logs.file_fault()
        return [*pressure.look(), *([fault] if fault else [])]

    return [
        asyncio.create_task(power.watch(resume.after), name="power"),
        asyncio.create_task(Comeback(gate, engines, catalog.models).watch(events), name="comeback"),
        asyncio.create_task(keep(notes, look), name="remarks"),
    ]
