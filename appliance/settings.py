"""Every setting, in one place. Built-in < system file < user file < ``APPLIANCE_*`` < command-line flags.

Nothing is read at import: ``load()`` reads the files and the environment when it is called.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from appliance.rate_text import rate_fault
from appliance.system import paths


class SettingsError(Exception):
    """A setting is wrong; the message names it, its value's fault and where settings come from."""


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
    """The appliance's settings. Each is also the variable ``APPLIANCE_<NAME>`` and a key of ``settings.toml``."""

    model_config = SettingsConfigDict(env_prefix="APPLIANCE_", extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on. Anything but loopback needs `api_key`.")
    port: int = Field(11711, ge=0, le=65535, description="TCP port; 0 takes a free one (see the port file).")
    models: Path | None = Field(None, description="The user's models folder; unset: one in the user's profile.")
    embedded_models: bool = Field(True, description="Also serve the models that come with the program.")
    state: Path | None = Field(None, description="Folder for logs, the port file and other state.")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="`auto`, `cpu`, `cuda` or `cuda:N`.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    api_key: str | None = Field(None, min_length=8, description="If set, every call but health needs this key.")
    allowed_hosts: list[str] = Field(
        default_factory=list, description="Host names accepted beside loopback ones in the `Host` header."
    )
    allowed_origins: list[str] = Field(
        default_factory=list, description="Web origins (`https://host:port`) accepted beside the own one."
    )

    threads: int = Field(0, ge=0, le=256, description="Threads of one run on the CPU; 0: one per physical core.")
    max_batch: int = Field(16, ge=1, le=1024, description="Most items merged into one run where a model allows it.")

    queue_per_model: int = Field(256, ge=1, description="Requests that may wait for one model; more get 429.")
    queue_total: int = Field(1024, ge=1, description="Requests that may wait in all; more get 429.")
    queue_timeout_ms: int = Field(30_000, ge=1, description="Longest wait for a lane; then 503.")
    run_timeout_ms: int = Field(60_000, ge=1, description="Longest run; then 504 and the run is stopped.")
    load_timeout_ms: int = Field(300_000, ge=1, description="Longest load and warm-up of one model.")
    shutdown_ms: int = Field(3_000, ge=0, description="How long running requests may finish when the program ends.")

    rate_limit_client: Rate | None = Field(
        None, description="Requests of one client (API key, else address), such as `100/second`; more get 429."
    )
    rate_limit_model: Rate | None = Field(None, description="Requests to one model, where it has no rate of its own.")
    rate_limit_storage: Annotated[str, AfterValidator(_storage)] = Field(
        "memory://", description="Where rates are counted; a `redis://` address is shared by several appliances."
    )

    memory_fraction: float = Field(0.9, gt=0, le=1, description="Share of a GPU's memory that may be used.")
    cpu_memory_fraction: float = Field(0.5, gt=0, le=1, description="Share of the system's memory for CPU models.")
    memory_reserve_bytes: int = Field(256 << 20, ge=0, description="Memory of each device that is left alone.")
    max_overtake_ms: int = Field(
        2_000, ge=0, description="How long smaller requests may overtake one that waits for memory."
    )

    max_body_bytes: int = Field(64 << 20, ge=1024, description="Largest request body, also after decompression.")
    max_body_total_bytes: int = Field(
        512 << 20, ge=1024, description="All request bodies held at once; more get 503."
    )
    body_timeout_ms: int = Field(30_000, ge=1, description="Longest time for a body to arrive.")
    idempotency_bytes: int = Field(64 << 20, ge=0, description="Kept answers of `Idempotency-Key`, together.")
    idempotency_keep_ms: int = Field(60_000, ge=0, description="How long such an answer is kept.")
    max_pixels: int = Field(50_000_000, ge=1, description="Largest image, in pixels, checked before decoding.")
    max_items: int = Field(64, ge=1, description="Most files in one task request.")
    max_elements: int = Field(64_000_000, ge=1, description="Most elements of one tensor.")
    max_connections: int = Field(2048, ge=1, description="Most open connections; more are refused.")
    pipeline_threads: int = Field(0, ge=0, le=64, description="Threads that decode and prepare; 0: one per core.")

    def models_folder(self) -> Path:
        """The user's models folder."""
        return (self.models or paths.default_models()).expanduser().absolute()

    def state_folder(self) -> Path:
        """The folder for logs and state."""
        return (self.state or paths.default_state()).expanduser().absolute()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """First wins: flags, environment, user file, system file."""
        files = [_read(settings_cls, file) for file in paths.settings_files()]
        return (init_settings, env_settings, *files)


def _read(settings_cls: type[BaseSettings], file: Path) -> TomlConfigSettingsSource:
    try:
        return TomlConfigSettingsSource(settings_cls, toml_file=file)
    except ValueError as error:  # not TOML, or not text
        raise ValueError(f"{file}: {error}") from None
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None


def load(**flags: Any) -> Settings:
    """Settings from all sources; ``flags`` that are None count as not given. Raises SettingsError in words."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(p) for p in e['loc'])}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()
        )
        raise SettingsError(f"settings: {faults}") from None
    except ValueError as error:  # a settings file that is not TOML, a variable that is not JSON
        raise SettingsError(f"settings: {error}") from None
