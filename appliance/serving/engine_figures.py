"""What ``/api/status`` says of the engine processes: each, and all together."""

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.engine.supervisor import Supervisor

_WORST = ("restarting", "starting", "ready", "stopped")


def engine_told(name: str, supervisor: Supervisor) -> dict[str, Any]:
    """One engine. ``id``: ``cuda:0``, ``cuda:0/torch``; times in Unix seconds."""
    client, hello = supervisor.client, supervisor.hello
    return {
        "id": name,
        "state": supervisor.state,
        "pid": supervisor.pid,
        "restarts": supervisor.restarts,
        "deaths": [msgspec.to_builtins(d) for d in supervisor.deaths],
        "next_start_at": supervisor.next_start,
        "memory_bytes": client.memory_bytes if client else None,
        "runtimes": dict(hello.runtimes) if hello else {},
        "providers": list(hello.providers) if hello else [],
    }


def together(engines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All engines as one, for who only wants to know whether all is well: the state of the one that is worst off, and
    sums. ``pid``: of the first."""
    if not engines:
        return {
            "state": "starting",
            "pid": None,
            "restarts": 0,
            "deaths": [],
            "next_start_at": None,
            "memory_bytes": None,
            "runtimes": {},
            "providers": [],
        }
    starts = [e["next_start_at"] for e in engines if e["next_start_at"] is not None]
    sizes = [e["memory_bytes"] for e in engines if e["memory_bytes"] is not None]
    return {
        "state": next((s for s in _WORST if any(e["state"] == s for e in engines)), "starting"),
        "pid": engines[0]["pid"],
        "restarts": sum(e["restarts"] for e in engines),
        "deaths": sorted((d for e in engines for d in e["deaths"]), key=lambda death: death["at"]),
        "next_start_at": min(starts, default=None),
        "memory_bytes": sum(sizes) if sizes else None,
        "runtimes": {package: version for e in engines for package, version in e["runtimes"].items()},
        "providers": list(dict.fromkeys(p for e in engines for p in e["providers"])),
    }
