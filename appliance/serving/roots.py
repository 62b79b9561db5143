"""The models folders: the user's own, then the embedded ones."""

from appliance.models.repository import Root
from appliance.settings import Settings
from appliance.system import paths
from appliance.system.long_paths import extended


def models_roots(settings: Settings) -> list[Root]:
    """In order of precedence; the embedded models are read-only, and left out where the settings say so."""
    own = Root(settings.models_folder())
    return [own, Root(extended(paths.assets() / "models"), read_only=True)] if settings.embedded_models else [own]
