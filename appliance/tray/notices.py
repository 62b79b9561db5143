"""What a person is told without asking, and how often. Pure: the time is an argument."""

from typing import Literal

from appliance.tray.state import TrayState

Cause = Literal["device", "engine", "models", "restart_needed"]

_SHOWN = 3  # names in one sentence


class Notices:
    """Remembers what it has told. Of each cause there is one notice in ``every_s`` seconds at most; what was held
    back is told when they are over, if it is still so, and together with what came meanwhile."""

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s = every_s
        self._told: dict[Cause, frozenset[str]] = {}
        self._at: dict[Cause, float] = {}

    def due(self, state: TrayState, now: float) -> tuple[str, ...]:
        """The sentences to show now; ``now`` in seconds of any clock that does not go back."""
        found = []
        for cause, facts in _facts(state).items():
            told = self._told.get(cause, frozenset()) & facts  # what is over may be told again
            self._told[cause] = told
            fresh = facts - told
            if fresh and (cause not in self._at or now - self._at[cause] >= self._every_s):
                self._told[cause], self._at[cause] = facts, now
                found.append(_words(cause, sorted(fresh), state))
        return tuple(found)


def _facts(state: TrayState) -> dict[Cause, frozenset[str]]:
    """What a person should know, by cause. While models are being loaded, at the start or for a new engine, nothing
    is said of models and device: it would be one sentence a model, and the same ones again after each restart."""
    facts: dict[Cause, frozenset[str]] = {
        "engine": frozenset([str(state.engine_restarts)] if state.engine_restarts else []),
        "restart_needed": frozenset(state.restart_needed),
    }
    loading = any(m.condition == "loading" for m in state.models)
    if state.engine_running and not loading and state.state not in ("starting", "stopped"):
        facts["device"] = frozenset([state.device_reason] if state.device_reason else [])
        facts["models"] = frozenset(m.name for m in state.models if m.condition == "failed")
    return facts


def _words(cause: Cause, fresh: list[str], state: TrayState) -> str:
    match cause:
        case "device":
            return f"Running on {state.device}: {state.device_reason}"
        case "engine":
            why = f": {state.engine_last_end}" if state.engine_last_end else ""
            which = "An engine" if len(state.engines) > 1 else "The engine"
            return f"{which} {'was' if state.engine_running else 'is being'} restarted{why}"
        case "models" if len(fresh) == 1:
            error = next((m.error for m in state.models if m.name == fresh[0]), None)
            return f"Model {fresh[0]} failed: {error}"
        case "models":
            return f"{len(fresh)} models failed: {_list(fresh)}"
        case "restart_needed":
            return f"Changed, and counts after a restart: {_list(fresh)}"


def _list(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
