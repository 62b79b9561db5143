"""Chat templates: what they may use, and what they may not do."""

import json
from pathlib import Path

import pytest

from appliance.errors import InvalidInput, ModelLoadError
from appliance.pipelines.language.chat_template import ChatTemplate, template_beside

HI = [{"role": "user", "content": "Hi <é>"}, {"role": "assistant", "content": "Ho"}]

BOS = {"bos_token": "<s>"}


def render(source: str, most: int = 1000, **more: object) -> str | None:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(HI, None, more, most)


def test_what_templates_use() -> None:
    assert render("{{ bos_token }}{% for m in messages %}\n  {{ m.role }}: {{ m['content'] }};\n{% endfor %}") == (
        "<s>  user: Hi <é>;\n  assistant: Ho;\n"
    )
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "Hi <é>"}'
    assert render("{{ [1] | tojson(indent=1) }}") == "[\n 1\n]"
    assert render("{% for m in messages %}{{ loop.index }}{% break %}{% endfor %}") == "1"
    assert render("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}") == (
        "assistant"
    )
    assert render("{% generation %}{{ messages[1].content }}{% endgeneration %}!") == "Ho!"
    assert render("{{ add_generation_prompt }} {{ tools is none }} {{ nothing }}.") == "True True ."
    assert render("{{ think }}", think=False) == "False"
    year = render("{{ strftime_now('%Y') }}")
    assert year is not None and year.isdigit() and len(year) == 4


def test_a_request_cannot_say_what_a_template_has_from_elsewhere() -> None:
    template = ChatTemplate({"default": "{{ bos_token }}{{ tools }}{{ think }}"}, {"bos_token": "<s>"})
    assert template.variables == {"bos_token", "tools", "think"}
    assert template.taken >= {"bos_token", "tools", "messages", "add_generation_prompt"}


def test_it_may_refuse_in_its_own_words() -> None:
    with pytest.raises(InvalidInput, match="template refuses: roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + none }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ 'a' * 10000000 }}",
        "{{ [1] * 10000000 }}",
        "{{ 10000000 * 'a' }}",
        "{{ 10 ** 10000000 }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% include 'x' %}",
    ],
)
def test_what_it_may_not_do(source: str) -> None:
    with pytest.raises(InvalidInput, match="cannot render these messages"):
        render(source)


def test_its_output_is_bounded() -> None:
    source = "{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}"
    assert render(source, most=50_000) is None
    assert render("x" * 50, most=50) == "x" * 50
    assert render("x" * 51, most=50) is None


def test_what_is_no_template() -> None:
    with pytest.raises(ModelLoadError, match="chat template cannot be read"):
        render("{% for %}")


def config(folder: Path, **values: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


def test_from_the_tokenizer_s_configuration(tmp_path: Path) -> None:
    assert template_beside([tmp_path]) is None
    assert template_beside([config(tmp_path, **BOS)]) is None
    found = template_beside([config(tmp_path, chat_template="{{ bos_token }}.", bos_token={"content": "<b>"}, x=1)])
    assert found is not None and found.render([], None, {}, 99) == "<b>."
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t{{ tools }}"}]
    found = template_beside([config(tmp_path, chat_template=named)])
    assert found is not None and "tools" in found.variables
    assert found.render([], None, {}, 99) == "d"
    assert found.render([], [{}], {}, 99) == "t[{}]"


def test_a_file_of_its_own_goes_before_it(tmp_path: Path) -> None:
    config(tmp_path, chat_template="old", **BOS)
    (tmp_path / "chat_template.jinja").write_text("new {{ bos_token }}")
    found = template_beside([tmp_path])
    assert found is not None and found.render([], None, {}, 99) == "new <s>"


def test_files_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        template_beside([tmp_path])
    with pytest.raises(ModelLoadError, match="larger than 256 KB"):
        template_beside([config(tmp_path, chat_template="x" * (300 << 10))])
