"""The appliance that is measured: where it is, what it says of the model, its counters and its memory."""

import time
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from appliance import keys
from appliance.bench.faults import BenchError
from appliance.bench.load import error_of
from appliance.settings import Settings
from appliance.system.instance import find_running

_ASK_S = 10.0
_WAKE_S = 300.0
_LOOK_S = 0.1
_ASLEEP_S = 3.0


class Counters(msgspec.Struct, frozen=True):
    """Items and runs of a model, and of those it is made of, since they were loaded."""

    items: int
    runs: int

    def batch_since(self, before: "Counters") -> float | None:
        """Mean items of a run since then; None if none ended."""
        runs = self.runs - before.runs
        return (self.items - before.items) / runs if runs > 0 else None


class Target:
    """One model of one appliance that runs. All calls raise BenchError where it does not answer."""

    def __init__(self, url: str, headers: Mapping[str, str], model: str) -> None:
        self.url = url
        self.headers = dict(headers)
        self.model = model
        self._client = httpx.Client(base_url=url, headers=self.headers, timeout=_ASK_S, trust_env=False)
        self._parts: tuple[str, ...] = (model,)

    def close(self) -> None:
        self._client.close()

    def metadata(self) -> dict[str, Any]:
        """The model's metadata route; a model that sleeps is woken, as any request would.

        BenchError with the appliance's words where it has no such model.
        """
        if any(m["name"] == self.model and not m["ready"] for m in self.status()["models"]):
            self._wake()
        found = self._get(f"/v2/models/{self.model}")
        self._parts = (self.model, *found["parameters"].get("parts", ()))
        return found

    def wait_ready(self, within_s: float) -> None:
        """Until the model is warm, or sleeps for want of room: then a request tells why it cannot be had.

        BenchError with the reason if it fails, or is neither in time.
        """
        until = time.monotonic() + within_s
        asleep_from: float | None = None
        while True:
            models = {m["name"]: m for m in self.status()["models"]}
            about = models.get(self.model)
            if about is not None:
                if about["ready"]:
                    return
                told = [about["error"], *(v["error"] for m in models.values() for v in m["versions"])]
                if any(told):
                    raise BenchError(f"'{self.model}' cannot be served: {'; '.join(filter(None, told))}")
            asleep = about is not None and any(v["state"] == "UNAVAILABLE" for v in about["versions"])
            asleep_from = (asleep_from or time.monotonic()) if asleep else None
            if asleep_from is not None and time.monotonic() - asleep_from > _ASLEEP_S:
                return
            if time.monotonic() > until:
                raise BenchError(f"'{self.model}' was not ready within {within_s:.0f} s")
            time.sleep(_LOOK_S)

    def status(self) -> dict[str, Any]:
        """``/api/status``."""
        return self._get("/api/status")

    def device(self) -> str:
        """What runs models, in words: ``cuda:0 (NVIDIA H200)``; with the reason where that is not what was asked."""
        status = self.status()
        running, reason = status["device"]["running"] or "cpu", status["device"]["reason"]
        first = "cpu" if running.startswith("cpu") else running.partition(",")[0]
        name = next((f" ({d['name']})" for d in status["devices"] if d["id"] == first and d["name"]), "")
        return f"{running}{name}" + (f", {reason}" if reason else "")

    def memory(self) -> int | None:
        """Bytes that the engine holds of the device now: of the GPU where one is used, else of the system."""
        return memory_of(self.status())

    def counters(self) -> Counters:
        """Of the model and its parts."""
        items = runs = 0
        for part in self._parts:
            for one in self._get(f"/v2/models/{part}/stats")["model_stats"]:
                items += one["inference_count"]
                runs += one["execution_count"]
        return Counters(items, runs)

    def _wake(self) -> None:
        """A request that is wrong, but known to be so only once the model is there. BenchError if it never is."""
        try:
            answer = self._client.post(f"/v2/models/{self.model}/infer", content=b"{}", timeout=_WAKE_S)
        except httpx.HTTPError as error:
            raise BenchError(f"{self.url} does not answer: {type(error).__name__}") from None
        if answer.status_code not in (400, 404):  # 404: one made of others, which its own request wakes
            raise BenchError(f"'{self.model}' cannot be woken: {error_of(answer.status_code, answer.content)[1]}")

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = self._client.get(path)
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise BenchError(f"{self.url} does not answer: {type(error).__name__}") from None
        if answer.status_code != 200:
            told = found.get("error", answer.status_code)
            raise BenchError(str(told.get("message", told) if isinstance(told, dict) else told))
        return found


def running(settings: Settings, model: str) -> Target:
    """The one that runs, by its port file or the settings' address. BenchError if none does."""
    found = find_running(settings.state_folder(), settings.port)
    url = found.url if found else f"http://{settings.host}:{settings.port}"
    target = Target(url, keys.headers(found, settings.api_key), model)
    try:
        target.status()
    except BenchError as error:
        target.close()
        if found is None:
            words = f"the appliance is not running on port {settings.port}; start it, or let bench do that: --own"
            raise BenchError(words) from None
        raise error from None
    return target


def memory_of(status: Mapping[str, Any]) -> int | None:
    """What a status says of the engines' memory: on the GPUs where any is used, else on the system."""
    running = ((status.get("device") or {}).get("running") or "cpu").split(", ")
    sizes = [_held(status, device) for device in running if device.startswith("cuda")]
    if not sizes:
        return (status.get("engine") or {}).get("memory_bytes")
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _held(status: Mapping[str, Any], device: str) -> int | None:
    """Of one GPU. Where its driver does not tell: what the ledger holds."""
    reading = next((d for d in status.get("devices", ()) if d["id"] == device), None)
    if reading is not None and reading["used_by_us"] is not None:
        used: int = reading["used_by_us"]
        return used
    ledger = (status.get("memory") or {}).get(device)
    return ledger["weights"] + ledger["in_flight"] if ledger else None
