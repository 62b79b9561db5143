"""Elsewhere than on Windows each answer is None or empty. (On Windows: tests/packaging.)"""

from pathlib import Path

import pytest

from appliance.system import windows_only


@pytest.mark.skipif(windows_only.HERE, reason="about other systems")
def test_there_is_nothing_of_it_elsewhere() -> None:
    assert windows_only.session() is windows_only.long_paths_enabled() is windows_only.code_page() is None
    assert windows_only.guarded_folders() is windows_only.power_plan() is None
    assert windows_only.reserved_ports() == ()
    assert windows_only.on_network(Path("/")) is False
