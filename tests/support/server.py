"""A real appliance in a process of its own, for tests that talk to it as a client would."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = ROOT / "tests" / "photos"


class Server:
    """``python -m appliance serve`` with folders of its own on a free port. Use as a context manager.

    ``settings`` become ``APPLIANCE_*`` variables. ``models`` is the user's models folder, ``state`` the state
    folder; ``log`` holds what it printed.
    """

    def __init__(self, folder: Path, *, embedded: bool = False, command: str = "serve", **settings: Any) -> None:
        self.models = folder / "models"
        self.state = folder / "state"
        self.log = folder / "server.log"
        self.models.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
        values = {
            "models": self.models,
            "state": self.state,
            "port": 0,
            "embedded_models": str(embedded).lower(),
            "device": "cpu",
            **settings,
        }
        for name, value in values.items():
            text = json.dumps(value) if isinstance(value, list | dict) else str(value)
            self.env[f"APPLIANCE_{name.upper()}"] = text
        self.command = command
        self.port_file = self.state / f"instance-{values['port']}.json"
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.client = httpx.Client(timeout=60, trust_env=False)

    def __enter__(self) -> "Server":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.client.close()

    def start(self, ready: bool = True, wait_s: float = 60) -> None:
        """Start it and wait until it answers, or (``ready``) until all models are warm."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "appliance", self.command], cwd=ROOT, env=self.env, stdout=out, stderr=out
            )
        deadline = time.monotonic() + wait_s
        while not self.port_file.exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        self.url = json.loads(self.port_file.read_text())["url"]
        self.client.base_url = httpx.URL(self.url)
        if ready:
            self.wait_ready(deadline - time.monotonic())

    def wait_ready(self, wait_s: float = 60) -> None:
        """Wait until ``/ready`` says so."""
        self.wait_for(lambda: self.client.get("/ready").status_code == 200, wait_s, "ready")

    def wait_for(self, condition: Any, wait_s: float = 30, what: str = "it") -> Any:
        """Poll until ``condition()`` is true; its value."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                value = condition()
            except httpx.HTTPError as error:
                value = None
                assert time.monotonic() < deadline, f"{what}: {error}\n{self.log.read_text()}"
            if value:
                return value
            assert time.monotonic() < deadline, f"waited {wait_s} s for {what}\n{self.log.read_text()}"
            time.sleep(0.05)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """End it with a signal; its exit code. Kills it if it does not end in 15 s (and fails)."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
            raise

    def status(self) -> dict[str, Any]:
        """``/api/status``."""
        found: dict[str, Any] = self.client.get("/api/status").json()
        return found

    @property
    def engine_pid(self) -> int:
        pid = self.status()["engine"]["pid"]
        assert isinstance(pid, int)
        return pid

    def index(self) -> dict[tuple[str, str], dict[str, str]]:
        """The repository index by (name, version)."""
        entries = self.client.post("/v2/repository/index").json()
        return {(e["name"], e["version"]): e for e in entries}
