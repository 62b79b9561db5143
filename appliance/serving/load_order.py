"""What an engine is told of a version to load, and what that will take. Pure."""

from appliance.engine.messages import Known, Load
from appliance.models.repository import ModelFile, ModelFolder
from appliance.serving.placement import backend_name
from appliance.settings import Settings


def largest_run(folder: ModelFolder, known: Known | None, max_batch: int) -> int:
    """What the largest run of a warm-up takes, as far as that is known before it; else 0."""
    memory = folder.config.memory
    if memory.run_bytes is not None or memory.item_bytes is not None:
        return (memory.run_bytes or 0) + (memory.item_bytes or 0) * (folder.config.batching.max or max_batch)
    return max((point.size for point in known.costs), default=0) if known is not None else 0


def load_message(settings: Settings, folder: ModelFolder, file: ModelFile, handle: int) -> Load:
    """What the engine is told of a version to load."""
    config, declared = folder.config, folder.declared
    return Load(
        handle=handle,
        model=folder.name,
        version=file.version,
        path=str(file.path),
        root=str(file.root),
        backend=backend_name(folder, file),
        device=settings.device,
        config=config,
        threads=config.threads or settings.threads,
        max_batch=settings.max_batch,
        labels=folder.labels,
        declared_inputs=declared.inputs if declared else (),
        declared_outputs=declared.outputs if declared else (),
        declared_max_batch=declared.max_batch if declared else None,
        trusted=folder.name in settings.trust_native_code,
    )
