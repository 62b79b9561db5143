"""A model that is sent: staged out of sight, loaded in an engine of its own, put in its place whole or not at all."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import structlog

from appliance.errors import ApplianceError, InputTooLarge, InvalidInput, ModelLoadError, Overloaded
from appliance.models import torch_file
from appliance.models.folder import ModelFolder, name_fault, read_folder
from appliance.models.listing import BACKENDS, ONNX
from appliance.models.unpack import MAGIC, unpack
from appliance.serving.catalog import Catalog
from appliance.serving.check import Checked, check
from appliance.settings import Settings
from appliance.system.long_paths import real_path

log = structlog.get_logger("models")

_PREFIX = ".upload-"  # hidden: a scan does not see it
_PIECE = 1 << 20
_SPARE = 64 << 20  # of the disk, for everybody else
_FORGOTTEN_S = 86_400  # what a killed program left behind


class Added(msgspec.Struct, frozen=True):
    """A model that is in its place. ``served``: requests to it would run; if not, ``reason`` says why in words."""

    name: str
    versions: list[Checked]
    served: bool
    reason: str | None


class Adding:
    """One model at a time. The check runs on the CPU: the device's memory is all booked for what is served."""

    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings = settings
        self._catalog = catalog
        self._busy = False

    async def add(self, name: str, size: int | None, pieces: AsyncIterator[bytes]) -> Added:
        """Take a model file, or a zip of a model's folder, as the model ``name``. ``size``: its bytes, if told.

        Raises InvalidInput for a name that is wrong or taken and for a model that is refused, with the check's words;
        InputTooLarge, Overloaded, ModelLoadError (the disk), and what ``pieces`` raises. Then nothing is left.
        """
        if fault := name_fault(name):
            raise InvalidInput(f"'{name[:128]}' cannot be a model's name: {fault}", param="name")
        if self._busy:
            raise Overloaded("another model is being added", retry_after_s=5)
        self._busy = True
        stage: Path | None = None
        try:
            stage = await asyncio.to_thread(self._stage, name, size)
            await _receive(stage / "body", pieces)
            folder = await asyncio.to_thread(self._lay_out, stage, name)
            verdicts = await self._check(folder)
            await asyncio.to_thread(self._place, stage / name, name)
        except OSError as error:
            raise ModelLoadError(f"the model cannot be written: {error.strerror}") from None
        finally:
            self._busy = False
            if stage is not None:
                await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)
        log.info("added", model=name)
        return await self._serve(name, folder, verdicts)

    def _stage(self, name: str, size: int | None) -> Path:
        models = self._settings.models_folder()
        models.mkdir(parents=True, exist_ok=True)
        self._free(models, name)
        for old in models.glob(f"{_PREFIX}*"):
            if old.stat().st_mtime < time.time() - _FORGOTTEN_S:
                shutil.rmtree(old, ignore_errors=True)
        room = shutil.disk_usage(models).free - _SPARE
        if size is not None and size > room:
            raise InputTooLarge(
                f"it has {size} bytes, the disk of the models has room for {max(0, room)}", param="body"
            )
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=models))

    def _free(self, models: Path, name: str) -> None:
        taken = {entry.lower() for entry in os.listdir(models)}  # noqa: PTH208 - links that lead nowhere count
        if taken & {name.lower(), *(f"{name.lower()}{ending}" for ending in BACKENDS)}:
            raise InvalidInput(f"there is a model '{name}' already; remove it first", param="name")

    def _lay_out(self, stage: Path, name: str) -> ModelFolder:
        body, target = stage / "body", stage / name
        with body.open("rb") as file:
            zipped = file.read(len(MAGIC)) == MAGIC
        ending = torch_file.sniff(body) if zipped else ONNX  # PyTorch's own files are archives too
        if ending is None:
            unpack(body, target, self._settings.max_model_bytes)
            body.unlink()
        else:
            target.mkdir()
            body.replace(target / f"model{ending}")
        folder = read_folder(target, real_path(stage))
        if folder.error:
            raise InvalidInput(f"the model is refused: {folder.error}", param="body")
        return folder

    async def _check(self, folder: ModelFolder) -> list[Checked]:
        settings = self._settings.model_copy(update={"device": "cpu"})
        config = msgspec.structs.replace(folder.config, device="cpu", devices=())
        on_cpu = msgspec.structs.replace(folder, config=config)
        verdicts = [verdict async for verdict in check(settings, [on_cpu])]
        faults = [f"version {v.version}: {v.error}" if len(verdicts) > 1 else v.error for v in verdicts if v.error]
        if faults:
            raise InvalidInput(f"the model is refused: {'; '.join(str(fault) for fault in faults)}", param="body")
        return verdicts

    def _place(self, source: Path, name: str) -> None:
        models = self._settings.models_folder()
        self._free(models, name)  # a copy by hand may have come meanwhile
        source.replace(models / name)

    async def _serve(self, name: str, folder: ModelFolder, verdicts: list[Checked]) -> Added:
        try:
            if folder.config.load == "eager":
                await self._catalog.load(name)
            else:
                await self._catalog.rescan()
            served = self._catalog.model_ready(name)
            asleep = "not loaded; a request loads it" if folder.config.load == "lazy" else "not loaded"
            return Added(name, verdicts, served, None if served else asleep)
        except ApplianceError as error:
            return Added(name, verdicts, False, error.message)


async def _receive(file: Path, pieces: AsyncIterator[bytes]) -> None:
    """Written in pieces that are worth a trip to a thread."""
    held = bytearray()
    with file.open("wb") as out:
        async for piece in pieces:
            held += piece
            if len(held) >= _PIECE:
                await asyncio.to_thread(out.write, bytes(held))
                held.clear()
        await asyncio.to_thread(out.write, bytes(held))
