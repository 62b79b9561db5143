"""1,000 idle connections and 200 slow ones beside good requests: what they cost the others.

``python -m tests.bench.door [--seconds 3] [--idle 1000] [--slow 200]``
"""

import argparse
import contextlib
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.load import Measured, measure
from tests.support.nets import scale
from tests.support.server import Server

BODY = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


class Crowd:
    """Connections that do nothing, and connections that send a request a byte at a time."""

    def __init__(self, server: Server, idle: int, slow: int) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._address = host, int(port)
        self.idle = [socket.create_connection(self._address) for _ in range(idle)]
        self.slow = [socket.create_connection(self._address) for _ in range(slow)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._drip)
        self.refused = 0

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for connection in (*self.idle, *self.slow):
            connection.close()

    def _drip(self) -> None:
        head = (
            b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
        )
        at = 0
        while not self._over.wait(0.1):
            for index, connection in enumerate(self.slow):
                try:
                    connection.sendall(head[at : at + 1])
                except OSError:  # cut off by the deadline: the next one takes its place
                    self.refused += 1
                    with contextlib.suppress(OSError):
                        connection.close()
                        self.slow[index] = socket.create_connection(self._address)
            at += 1


def main() -> None:
    """Measure without and with the crowd, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=200)
    arguments = parser.parse_args()
    console = Console(width=100)
    alone: list[Measured] = []
    crowded: list[Measured] = []
    cut_off = 0
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        scale(server.models / "scale" / "1" / "model.onnx")
        with server:
            url = f"{server.url}/v2/models/scale/infer"
            measure(url, BODY, {}, 4, 1)
            for number in range(arguments.rounds):
                with console.status(f"round {number + 1} of {arguments.rounds}"):
                    alone.append(measure(url, BODY, {}, 4, arguments.seconds))
                    with Crowd(server, arguments.idle, arguments.slow) as crowd:
                        time.sleep(1)
                        crowded.append(measure(url, BODY, {}, 4, arguments.seconds))
                        cut_off += crowd.refused
    table = Table(title=f"good requests beside {arguments.idle} idle and {arguments.slow} slow connections")
    for column in ("", "requests/s", "p50 ms", "p99 ms", "failed"):
        table.add_column(column, justify="right" if column else "left")
    for label, results in (("alone", alone), ("in the crowd", crowded)):
        table.add_row(
            label,
            f"{statistics.median(m.per_second for m in results):,.0f}",
            f"{statistics.median(m.p50_ms for m in results):.2f}",
            f"{statistics.median(m.p99_ms for m in results):.2f}",
            str(sum(m.bad for m in results)),
        )
    console.print(table)
    console.print(f"Medians of {arguments.rounds} rounds; slow connections cut off meanwhile: {cut_off}.")


if __name__ == "__main__":
    main()
