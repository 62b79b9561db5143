"""Shows a real tray icon for the tests: a line of JSON on standard input is the next state.

Prints one line per thing that happens: ``action NAME``, ``say TEXT``, ``painted``, ``ended REASON``.
"""

import sys
import threading

import msgspec

from appliance.system import processes
from appliance.tray.icon import run_tray
from appliance.tray.state import TrayState


def tell(line: str) -> None:
    """One line to the test, at once."""
    print(line, flush=True)


def main() -> None:
    """Run until the input or a signal says stop; print the reason that `run_tray` gives."""
    stop, changed, alive = threading.Event(), threading.Event(), threading.Event()
    state = [TrayState(state="starting", address="http://127.0.0.1:11711", device="CPU")]
    processes.on_stop(stop.set)

    def read() -> None:
        for line in sys.stdin:
            state[0] = msgspec.json.decode(line, type=TrayState)
            changed.set()
        alive.set()

    def act(action: str, model: str) -> str | None:
        tell(f"action {action} {model}".rstrip())
        if action == "quit":
            stop.set()
        return None

    threading.Thread(target=read, daemon=True).start()
    tell("started")
    reason = run_tray(lambda: state[0], act, stop, changed, say=lambda line: tell(f"say {line}"))
    tell(f"ended {reason}")
    if reason is not None:
        alive.wait()  # the program goes on without an icon
        tell("went on")


if __name__ == "__main__":
    main()
