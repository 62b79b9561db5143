"""Every setting, in one place. Built-in < system file < user file < ``APPLIANCE_*`` < command-line flags.

Nothing is read at import: ``load()`` reads the files and the environment when it is called.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PrivateAttr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from appliance.rate_text import rate_fault
from appliance.setting_layers import Fault, Layer, faults_of, merged, read_layers
from appliance.system import paths
from appliance.system.long_paths import extended

T = TypeVar("T")


class Mark(Enum):
    """What there is to know of a setting beside its value."""

    AT_START = "a change counts from the next start on"
    SECRET = "not shown"  # noqa: S105 - what is told of it


# A setting is taken up while the program runs, unless it says that it is not.
AtStart = Annotated[T, Mark.AT_START]
Secret = Annotated[T, Mark.SECRET]


class SettingsError(Exception):
    """Settings are wrong; the message tells each fault, and where it stands."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(f"settings: {'; '.join(map(str, faults))}")
        self.faults = tuple(faults)


def _rate(text: str) -> str:
    fault = rate_fault(text)
    if fault:
        raise ValueError(fault)
    return text


def _storage(text: str) -> str:
    if text == "memory://":
        return text
    if not _is_redis(text):  # told without the text itself: it may hold a password
        raise ValueError("must be memory:// or an address such as redis://host:6379/0")
    if find_spec("redis") is None:
        raise ValueError("the extra 'redis' is not installed: pip install \".[redis]\"")
    return text


def _is_redis(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


Rate = Annotated[str, AfterValidator(_rate)]


class Settings(BaseSettings):
    """The appliance's settings. Each is also the variable ``APPLIANCE_<NAME>`` and a key of ``settings.toml``.

    They do not change, but for those of a running appliance by its own ``take_up``: what reads a setting each time
    that it needs it has the newest value.
    """

    model_config = SettingsConfigDict(env_prefix="APPLIANCE_", extra="forbid", frozen=True)

    _flags: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    host: AtStart[str] = Field(
        "127.0.0.1", description="Address to listen on. Anything but loopback needs `api_key`."
    )
    port: AtStart[int] = Field(11711, ge=0, le=65535, description="TCP port; 0 takes a free one (see the port file).")
    models: AtStart[Path | None] = Field(
        None, description="The user's models folder; unset: one in the user's profile."
    )
    embedded_models: AtStart[bool] = Field(True, description="Also serve the models that come with the program.")
    state: AtStart[Path | None] = Field(None, description="Folder for logs, the port file and other state.")
    device: AtStart[str] = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda|(cuda|cpu):\d{1,3}(, ?(cuda|cpu):\d{1,3}){0,31})$",
        description="`auto` (every GPU that can be used), `cpu`, `cuda`, `cuda:N`, or a list: `cuda:0,cuda:1`; "
        "`cpu:0,cpu:1` are engines with equal shares of the cores.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_requests: Literal["off", "errors", "all"] = Field(
        "errors", description="Which requests have a line in a log."
    )
    api_key: Secret[str | None] = Field(
        None, min_length=8, description="A key of the scope `admin`. With any key, every call but health needs one."
    )
    allowed_hosts: list[str] = Field(
        default_factory=list, description="Host names accepted beside loopback ones in the `Host` header."
    )
    allowed_origins: list[str] = Field(
        default_factory=list, description="Web origins (`https://host:port`) accepted beside the own one."
    )

    threads: AtStart[int] = Field(
        0, ge=0, le=256, description="Threads of one run on the CPU; 0: one per physical core."
    )
    max_batch: AtStart[int] = Field(
        16, ge=1, le=1024, description="Most items merged into one run where a model allows it."
    )

    trust_native_code: list[str] = Field(
        default_factory=list, description="Names of models whose files may hold machine code (AOTInductor) that runs."
    )

    queue_per_model: int = Field(256, ge=1, description="Requests that may wait for one model; more get 429.")
    queue_total: int = Field(1024, ge=1, description="Requests that may wait in all; more get 429.")
    queue_timeout_ms: int = Field(30_000, ge=1, description="Longest wait for a lane; then 503.")
    run_timeout_ms: int = Field(60_000, ge=1, description="Longest run; then 504 and the run is stopped.")
    first_token_timeout_ms: int = Field(
        120_000, ge=1, description="Longest run of a language model before its first token; then 504."
    )
    generation_timeout_ms: int = Field(
        600_000,
        ge=1,
        description="Longest run of a language model, with all of its answer; then 504 or an error event.",
    )
    load_timeout_ms: AtStart[int] = Field(300_000, ge=1, description="Longest load and warm-up of one model.")
    shutdown_ms: int = Field(3_000, ge=0, description="How long running requests may finish when the program ends.")

    rate_limit_client: Rate | None = Field(
        None, description="Requests of one client (API key, else address), such as `100/second`; more get 429."
    )
    rate_limit_model: Rate | None = Field(None, description="Requests to one model, where it has no rate of its own.")
    rate_limit_storage: AtStart[Secret[Annotated[str, AfterValidator(_storage)]]] = Field(
        "memory://", description="Where rates are counted; a `redis://` address is shared by several appliances."
    )

    memory_fraction: float = Field(0.9, gt=0, le=1, description="Share of a GPU's memory that may be used.")
    cpu_memory_fraction: float = Field(0.5, gt=0, le=1, description="Share of the system's memory for CPU models.")
    memory_reserve_bytes: int = Field(256 << 20, ge=0, description="Memory of each device that is left alone.")
    max_overtake_ms: int = Field(
        2_000, ge=0, description="How long smaller requests may overtake one that waits for memory."
    )

    max_body_bytes: int = Field(64 << 20, ge=1024, description="Largest request body, also after decompression.")
    max_model_bytes: int = Field(
        4 << 30, ge=1024, description="Largest model that may be sent to be added, also after unpacking."
    )
    max_body_total_bytes: int = Field(
        512 << 20, ge=1024, description="All request bodies held at once; more get 503."
    )
    body_timeout_ms: int = Field(30_000, ge=1, description="Longest time for a body to arrive.")
    idempotency_bytes: int = Field(64 << 20, ge=0, description="Kept answers of `Idempotency-Key`, together.")
    idempotency_keep_ms: int = Field(60_000, ge=0, description="How long such an answer is kept.")
    max_pixels: AtStart[int] = Field(
        50_000_000, ge=1, description="Largest image, in pixels, checked before decoding."
    )
    max_items: int = Field(64, ge=1, description="Most files in one task request.")
    max_elements: int = Field(64_000_000, ge=1, description="Most elements of one tensor.")
    max_connections: AtStart[int] = Field(2048, ge=1, description="Most open connections; more are refused.")
    pipeline_threads: AtStart[int] = Field(
        0, ge=0, le=64, description="Threads that decode and prepare; 0: one per core."
    )

    def models_folder(self) -> Path:
        """The user's models folder."""
        return extended((self.models or paths.default_models()).expanduser().absolute())

    def state_folder(self) -> Path:
        """The folder for logs and state."""
        return extended((self.state or paths.default_state()).expanduser().absolute())

    def reloaded(self) -> "Settings":
        """What the sources say now, with the flags of before. Raises SettingsError."""
        return load(**self._flags)

    def take_up(self, fresh: "Settings") -> tuple[list[str], list[str]]:
        """Make the values of ``fresh`` one's own, where that is possible while the program runs.

        Returns the names of those that are other now, and of those that will be after a restart.
        """
        changed = [name for name in type(self).model_fields if getattr(self, name) != getattr(fresh, name)]
        taken = [name for name in changed if live(name)]
        self.__dict__.update({name: getattr(fresh, name) for name in taken})
        return taken, [name for name in changed if not live(name)]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What it is made with: ``load`` looks at the sources."""
        return (init_settings,)


def live(name: str) -> bool:
    """Whether a change of this setting is taken up while the program runs."""
    return Mark.AT_START not in Settings.model_fields[name].metadata


def shown(name: str, value: Any) -> Any:
    """The value as it may be shown: nothing of a secret but that there is one."""
    if Mark.SECRET not in Settings.model_fields[name].metadata or value in (None, "memory://"):
        return str(value) if isinstance(value, Path) else value
    return "(not shown)"


def layers(**flags: Any) -> list[Layer]:
    """All sources as they are now, the strongest first; ``flags`` that are None count as not given."""
    return read_layers(Settings, paths.settings_files(), flags)


def load(**flags: Any) -> Settings:
    """Settings from all sources. Raises SettingsError in words."""
    found = layers(**flags)
    values = merged(found)
    faults = faults_of(Settings, found, values)
    if faults:
        raise SettingsError(faults)
    settings = Settings(**values)
    settings._flags = dict(flags)
    return settings
