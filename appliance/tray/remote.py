"""An appliance in another process, of another user or on another machine: its state, and what can be done with it."""

import contextlib
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from appliance.tray import menu
from appliance.tray.actions import ControlError
from appliance.tray.state import TrayState, from_status, not_there

EVERY_S = 2.0
"""Between two looks at an appliance that answers."""

WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Between two looks at one that does not; the last one again and again."""

_SHORT_S = 5.0  # for what takes an appliance no time
_SLACK_S = 10.0  # beyond what a load or an unload may take by itself


class Remote:
    """Looks at the appliance in a thread of its own, and is the tray's `Controls` over HTTP.

    ``where()``: its address of now and what to send along; asked each time, since an appliance that is started again
    may have another port and another key. ``load_s``: the longest that one waits for a load. ``changed`` is set after
    each look; ``transport`` is for tests.
    """

    def __init__(
        self,
        where: Callable[[], tuple[str, dict[str, str]]],
        load_s: float,
        changed: threading.Event,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._where = where
        self._load_s = load_s + _SLACK_S
        self._changed = changed
        self._client = httpx.Client(timeout=_SHORT_S, trust_env=False, transport=transport)
        self._due = threading.Event()
        self._seen: tuple[str, dict[str, Any] | None, str] = (where()[0], None, "Not looked at yet")

    @property
    def address(self) -> str:
        """Its base URL."""
        return self._where()[0]

    @property
    def status(self) -> dict[str, Any] | None:
        """``/api/status`` of the last look; None if it did not answer."""
        return self._seen[1]

    def state(self, saving: bool = False) -> TrayState:
        """What the last look found; asks nothing. ``saving``: a diagnostic file is being made."""
        address, status, why = self._seen
        if status is None:
            return not_there(why, address, saving=saving)
        return from_status(status, address, saving=saving, attached=True)

    def follow(self, stop: threading.Event) -> None:
        """Look again and again until ``stop``, and close the connection."""
        misses = 0
        with contextlib.closing(self._client):
            while not stop.is_set():
                misses = 0 if self.look() else misses + 1
                self._due.wait(EVERY_S if misses == 0 else WAITS_S[min(misses, len(WAITS_S)) - 1])
                self._due.clear()

    def look(self) -> bool:
        """Once, now. Whether the appliance has told its state."""
        address, headers = self._where()
        try:
            answer = self._client.get(f"{address}/api/status", headers=headers)
            status, why = _status_of(answer, address)
            if status is not None:
                state = from_status(status, address, attached=True)
                menu.items(state)  # of another version it may lack what these need
                menu.tooltip(state)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            status, why = None, _fault(error, address)
        except (LookupError, TypeError, ValueError, AttributeError):
            status, why = None, f"What {address} answers is not understood: is it of another version?"
        self._seen = (address, status, why)
        self._changed.set()
        return status is not None

    def end(self, stop: threading.Event) -> None:
        """No more looks."""
        stop.set()
        self._due.set()

    def pause(self) -> None:
        """Requests wait from now on."""
        self._post("/api/pause", _SHORT_S)

    def resume(self) -> None:
        """Requests go on."""
        self._post("/api/resume", _SHORT_S)

    def load(self, model: str) -> None:
        """Returns when it is warm."""
        self._post(f"/v2/repository/models/{quote(model, safe='')}/load", self._load_s)

    def unload(self, model: str) -> None:
        """Running requests end first."""
        self._post(f"/v2/repository/models/{quote(model, safe='')}/unload", self._load_s)

    def pin(self, model: str, pinned: bool) -> None:
        """A pinned model makes room for no other one."""
        self._post(f"/api/models/{quote(model, safe='')}/{'pin' if pinned else 'unpin'}", _SHORT_S)

    def restart_engine(self) -> None:
        """Of all engines."""
        self._post("/api/engine/restart", _SHORT_S)

    def dashboard(self) -> str:
        """The page itself asks for a key where one is needed."""
        return "/"

    def drain(self, within_s: float) -> bool:
        """Never: who may see the appliance's icon need not be the one to end it."""
        return False

    def _post(self, path: str, within_s: float) -> None:
        address, headers = self._where()
        try:
            answer = self._client.post(f"{address}{path}", headers=headers, timeout=within_s)
        except httpx.TimeoutException:
            raise ControlError(f"the appliance did not do it within {within_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ControlError(_fault(error, address)) from None
        self._due.set()
        if not answer.is_success:
            raise ControlError(_message(answer))


def _status_of(answer: httpx.Response, address: str) -> tuple[dict[str, Any] | None, str]:
    """What an answer tells, or why it tells nothing. ValueError for one that is no JSON."""
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        return None, f"No access: {address} wants an API key, and the setting api_key has none that it takes"
    if not answer.is_success:
        return None, f"No access: {_message(answer)}"
    found = answer.json()
    if not isinstance(found, dict) or found.get("name") != "inference-appliance":
        return None, f"Not running: another program answers at {address}"
    return found, ""


def _fault(error: Exception, address: str) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"No answer from {address} within {_SHORT_S:g} s"
    return f"Not running: nothing answers at {address}"


def _message(answer: httpx.Response) -> str:
    """Of a refusal, in either shape of this API."""
    try:
        error = answer.json()["error"]
        return str(error if isinstance(error, str) else error["message"])
    except (ValueError, LookupError, TypeError):
        return f"it answers with the status {answer.status_code}"
