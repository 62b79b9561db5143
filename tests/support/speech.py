"""A tokenizer of single bytes, and fake language models that say what a test wants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BEGIN, TURN, END = 0, 1, 2
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "<|python_tag|>")
VOCABULARY = len(SPECIAL) + 256
TEMPLATE = (
    "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Call them in <tool_call></tool_call>.\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> Tokenizer:
    """A token for each byte, after the special ones; a text begins with ``<s>``."""
    marks = {token: index for index, token in enumerate(SPECIAL)}
    letters = {letter: len(marks) + at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab={**marks, **letters}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    return made


def ids(text: str) -> list[int]:
    """The tokens of a text: one a byte, and one for each special token in it."""
    found: list[int] = tokenizer().encode(text, add_special_tokens=False).ids
    return found


def beside(folder: Path, template: str | None = TEMPLATE) -> Path:
    """The files that lie beside a language model."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}}')
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def fake_model(
    folder: Path,
    says: str | Sequence[int] | None = None,
    *,
    template: str | None = TEMPLATE,
    toml: str = "",
    **more: Any,
) -> Path:
    """A model that says a text, or tokens; with None its prompt again and again. ``more``: of its ``generation``."""
    beside(folder, template)
    more = {"vocabulary": VOCABULARY, **more}
    if says is not None:
        more["answer"] = ids(says) if isinstance(says, str) else list(says)
    told = ", ".join(f"{name} = {str(v).lower() if isinstance(v, bool) else v}" for name, v in more.items())
    text = f'backend = "fake"\n{toml}\n[backend_options]\ngeneration = {{ {told} }}\n'
    (folder / "model.toml").write_text(text.replace("'", '"'))
    return folder
