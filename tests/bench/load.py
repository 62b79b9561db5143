"""A closed-loop HTTP load: ``wrk`` where it is installed, else a small client of our own (slower itself)."""

import asyncio
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

_LUA = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
{headers}
done = function(summary, latency, requests)
  local bad = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  io.write(string.format("\\nRESULT %f %f %f %d\\n", summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, bad))
end
"""


class Measured(NamedTuple):
    """Requests per second, latency in milliseconds, answers that were no success."""

    per_second: float
    p50_ms: float
    p99_ms: float
    bad: int


def tool() -> str:
    """What measures: for the table's caption."""
    return "wrk" if shutil.which("wrk") else "the built-in client (install wrk for truer numbers)"


def measure(url: str, body: bytes, headers: dict[str, str], clients: int, seconds: float) -> Measured:
    """``clients`` connections, each sending its next request when the answer is there."""
    if shutil.which("wrk"):
        return _wrk(url, body, headers, clients, seconds)
    return asyncio.run(_own(url, body, headers, clients, seconds))


def _wrk(url: str, body: bytes, headers: dict[str, str], clients: int, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        data, script = Path(folder, "body"), Path(folder, "script.lua")
        data.write_bytes(body)
        lines = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items())
        script.write_text(_LUA.format(body=data.as_posix(), headers=lines))
        command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:.0f}s", "--timeout", "30s", "-s", str(script), url]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in printed.splitlines() if line.startswith("RESULT "))
    _, rate, p50, p99, bad = line.split()
    return Measured(float(rate), float(p50), float(p99), int(bad))


async def _own(url: str, body: bytes, headers: dict[str, str], clients: int, seconds: float) -> Measured:
    parts = urlsplit(url)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    times: list[float] = []
    bad = 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal bad
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while (started := time.perf_counter()) < end:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].partition(b"\r")[0])
            await reader.readexactly(length)
            bad += not answer.startswith(b"HTTP/1.1 200")
            times.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    times.sort()
    return Measured(len(times) / seconds, times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3, bad)
