"""Which programs use a card, by an NVML that is made up."""

import os
from types import SimpleNamespace
from typing import Any

from appliance.system.gpu_users import GpuUsers


class Nvml:
    """Two cards; the first has this process, computing and drawing, and one whose memory is not told."""

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle == 1:
            raise RuntimeError("not supported")
        return [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=300),
            SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None),
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=200)] if handle == 0 else []


def test_each_program_counts_once_with_the_most_it_has() -> None:
    found = GpuUsers(Nvml(), {}).users()
    assert [(user.pid, user.size) for user in found["cuda:0"]] == [(os.getpid(), 300), (2**22 + 1, None)]
    assert found["cuda:0"][1].name == "a program"  # there is none of that number
    assert found["cuda:1"] == ()


def test_hidden_cards_are_counted_but_not_looked_at() -> None:
    users = GpuUsers(Nvml(), {"CUDA_VISIBLE_DEVICES": "1"})
    assert users.users() == {"cuda:0": ()}
    assert users.count() == 2
