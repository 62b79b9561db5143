"""Runs under Wine, beside the source: load models in a real engine and print what is said of the device.

    python cuda_probe.py REPOSITORY STATE MODELS

One line of JSON a model: name, device, degraded (why it is not CUDA), error.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from appliance.models.repository import Root, scan
from appliance.serving.check import check
from appliance.settings import Settings


async def main() -> None:
    state, models = map(Path, sys.argv[2:4])
    settings = Settings(state=state, models=models, device="auto", embedded_models=False)
    async for verdict in check(settings, list(scan([Root(models)]).values())):
        spec = verdict.spec
        print(
            json.dumps(
                {
                    "name": verdict.name,
                    "device": spec.device if spec else None,
                    "degraded": spec.degraded if spec else None,
                    "error": verdict.error,
                }
            )
        )


asyncio.run(main())
