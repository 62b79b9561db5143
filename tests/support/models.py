"""Real models for tests that do not come with the project."""

import os
from pathlib import Path

VARIABLE = "APPLIANCE_TEST_MODELS"


def at_hand(name: str) -> Path | None:
    """The folder of a model (``embed/minilm``) below the one that ``APPLIANCE_TEST_MODELS`` names, or None."""
    root = os.environ.get(VARIABLE)
    folder = Path(root, name) if root else None
    return folder if folder is not None and folder.is_dir() else None
