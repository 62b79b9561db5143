"""Where a key is needed, the tray opens the dashboard without asking for it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from appliance.app import Appliance
from appliance.settings import Settings
from appliance.system import ports
from tests.process.helpers import fake

KEY = "a-key-for-this-test"


def test_the_tray_s_code_opens_the_page_once(tmp_path: Path, dashboard: Callable[..., Any]) -> None:
    fake(tmp_path / "models", "quick")
    settings = Settings(
        models=tmp_path / "models",
        state=tmp_path / "state",
        embedded_models=False,
        device="cpu",
        port=0,
        api_key=KEY,
    )
    appliance = Appliance(settings, ports.listen("127.0.0.1", 0))
    appliance.start()
    try:
        assert appliance.controls is not None
        place = appliance.controls.dashboard()
        board = dashboard(SimpleNamespace(url=appliance.address), place)
        board.until("document.getElementById('state').textContent === 'Ready'")
        assert "code" not in board.page.url
        assert KEY not in board.page.evaluate("sessionStorage.getItem('api-key')"), "the program's own, which ends"
        board.page.reload()
        board.until("document.getElementById('state').textContent === 'Ready'")

        other = dashboard(SimpleNamespace(url=appliance.address), place)
        other.page.wait_for_selector("#ask-key[open]")
        other.faults.clear()  # the refused code, which the browser tells of

        url = f"{appliance.address}/api/session"
        for body, status in ((b'{"code": "guess"}', 401), (b"{}", 400), (b"x" * 2000, 400), (b'{"code": 1}', 400)):
            assert httpx.post(url, content=body, trust_env=False).status_code == status
    finally:
        appliance.stop()
