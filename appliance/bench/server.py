"""The appliance that a bench starts for itself: one model, a free port, and it ends with the bench. (Child side.)"""

import contextlib
import socket
import threading
from pathlib import Path

import msgspec

from appliance import logs
from appliance.settings import Settings
from appliance.system import ports


class Start(msgspec.Struct, frozen=True):
    """What the bench tells it, as one line of JSON: every setting, and the state folder of the runtime packs."""

    settings: dict[str, object]
    packs: str


def main(connection: socket.socket) -> int:
    """Serve until the bench closes the connection; the address goes there as one line. The exit code."""
    from appliance.app import Appliance

    with connection.makefile("rb") as lines:
        start = msgspec.json.decode(lines.readline(), type=Start)
        settings = Settings(**start.settings)  # type: ignore[arg-type]  # as they were dumped
        logs.set_up(settings.log_level, settings.state_folder() / "logs" / "appliance.log", console=True)
        appliance = Appliance(settings, ports.listen(settings.host, settings.port), Path(start.packs))
        appliance.start()
        threading.Thread(target=_end_too, args=(appliance.stopped, connection), daemon=True).start()
        with contextlib.suppress(OSError):
            connection.sendall(appliance.address.encode() + b"\n")
            lines.read()  # until the bench, or the appliance, has ended
    appliance.stop()
    return int(appliance.failed)


def _end_too(stopped: threading.Event, connection: socket.socket) -> None:
    """If the appliance ends by itself, nobody need wait any more."""
    stopped.wait()
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
