"""A model's tokenizer: ``tokenizer.json`` beside the model file, read with bounds.

One text at a time, in the caller's thread: the library's own threads would take the cores from the engine.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from appliance.errors import InvalidInput, ModelLoadError
from appliance.pipelines.language.decoder import Decoder
from appliance.system.long_paths import real_path

if TYPE_CHECKING:
    from tokenizers import Encoding

T = TypeVar("T")

FILENAME = "tokenizer.json"
_MAX_BYTES = 64 << 20


class Encoded(NamedTuple):
    """A text as tokens. ``types``: which part of a pair each belongs to. ``whole``: how many there were before the
    text was cut to the limit; the same as ``len(ids)`` where it was not."""

    ids: list[int]
    types: list[int]
    whole: int


class TextTokenizer:
    """``vocabulary``: ids are below it. ``pad_id``: what the file fills up with, 0 where it does not say.
    ``length``: the most tokens that the file itself cuts to, None where it does not. ``special``: ids that are no
    text. May be used by several threads.
    """

    def __init__(self, raw: str, name: str) -> None:
        """``raw``: the file's text; ``name``: the model's, for messages. ModelLoadError if it is no tokenizer."""
        from tokenizers import Tokenizer

        try:
            self._tokenizer = _kept(Tokenizer.from_str, raw)
        except ValueError as error:
            raise ModelLoadError(f"model '{name}': {FILENAME} is not a tokenizer: {error}") from None
        cut, fill = self._tokenizer.truncation, self._tokenizer.padding
        self.length: int | None = int(cut["max_length"]) if cut else None
        self.pad_id = int(fill["pad_id"]) if fill else 0
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary = 1 + max(self._tokenizer.get_vocab().values(), default=-1)  # ids may have gaps
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token for token, about in added.items() if about.special)

    @classmethod
    def beside(cls, folders: Iterable[Path], name: str) -> "TextTokenizer":
        """That of model ``name``, from the first of ``folders`` that holds one. ModelLoadError."""
        raw = read_beside(folders, FILENAME, _MAX_BYTES)
        if raw is None:
            raise ModelLoadError(f"model '{name}': there is no {FILENAME} beside the model file")
        return cls(raw, name)

    def id_of(self, token: str) -> int | None:
        """The id of a token as the file writes it, such as ``</s>``."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, text: str, *, special: bool = True, limit: int | None = None, field: str = "text") -> Encoded:
        """``special``: with the tokens that the model wants around a text. ``limit``: what is longer loses its end,
        never its special tokens. InvalidInput, naming ``field``, for what is no text."""
        encoding = self._plain(text, field)
        around = self._tokenizer.num_special_tokens_to_add(False) if special else 0
        whole = len(encoding.ids) + around
        if limit is not None and whole > limit:
            encoding.truncate(max(0, limit - around))
        done = _kept(self._tokenizer.post_process, encoding, None, True) if special else encoding
        return Encoded(done.ids, done.type_ids, whole)

    def pair(self, first: str, second: str, *, limit: int | None = None, field: str = "text") -> Encoded:
        """Two texts as one, such as a question and a document. InvalidInput.

        Over ``limit`` the second loses its end; the first only what is over half of the limit.
        """
        one, two = self._plain(first, field), self._plain(second, field)
        around = self._tokenizer.num_special_tokens_to_add(True)
        whole = len(one.ids) + len(two.ids) + around
        if limit is not None and whole > limit:
            room = max(0, limit - around)
            if len(one.ids) > room - min(len(two.ids), room // 2):
                one.truncate(room - min(len(two.ids), room // 2))
            two.truncate(max(0, room - len(one.ids)))
        done = _kept(self._tokenizer.post_process, one, two, True)
        return Encoded(done.ids, done.type_ids, whole)

    def ids(self, text: str, *, special: bool, field: str = "text") -> list[int]:
        """As ``encode``, of a text that may be long: other threads run meanwhile. InvalidInput."""
        try:
            (found,) = _kept(self._tokenizer.encode_batch_fast, [text], add_special_tokens=special)
        except (TypeError, ValueError):
            raise _not_text(field) from None
        ids: list[int] = found.ids
        return ids

    def decoder(self, shown: Iterable[str] = (), before: Sequence[int] = ()) -> Decoder:
        """Of one answer, see there; special tokens are not told, but for those ``shown``."""
        seen = {self.id_of(token) for token in shown}
        return Decoder(self._tokenizer, self.special - seen, before)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """``special``: special tokens are written out too."""
        return _kept(self._tokenizer.decode, list(ids), skip_special_tokens=not special)

    def _plain(self, text: str, field: str) -> "Encoding":
        try:
            return _kept(self._tokenizer.encode, text, add_special_tokens=False)
        except (TypeError, ValueError):
            raise _not_text(field) from None


def _not_text(field: str) -> InvalidInput:
    return InvalidInput(f"'{field}' cannot be made into tokens; it must be valid Unicode", param=field)


def read_beside(folders: Iterable[Path], filename: str, most: int = 1 << 20) -> str | None:
    """The text of a file beside a model, from the first of ``folders`` that holds it; None if none does.

    ModelLoadError for one that is over ``most`` bytes, no regular file, not UTF-8, or that a link leads to from
    outside of the model's folder, which is the last of ``folders``.
    """
    looked = tuple(folders)
    for folder in looked:
        path = folder / filename
        if not path.is_file():
            continue
        if not Path(real_path(path)).is_relative_to(real_path(looked[-1])):
            raise ModelLoadError(f"{filename}: a link leads outside of the model's folder")
        try:
            with path.open("rb") as file:
                raw = file.read(most + 1)
        except OSError as error:
            raise ModelLoadError(f"{filename}: cannot be read: {error.strerror}") from None
        if len(raw) > most:
            raise ModelLoadError(f"{filename}: it is larger than {most >> 20} MB")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ModelLoadError(f"{filename}: it is not UTF-8 text") from None
    return None


def _kept(work: Callable[..., T], *args: object, **options: object) -> T:
    """``work`` of the library. It raises ``Exception`` itself, and a panic that is none: both come as ValueError."""
    try:
        return work(*args, **options)
    except (TypeError, ValueError):
        raise
    except Exception as error:  # noqa: BLE001 - the library has no type of its own
        raise ValueError(str(error)[:200]) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError("its library gave up") from None
