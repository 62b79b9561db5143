"""Chat templates that would run on, or fill the memory: refused, when read and when rendered."""

from typing import Any

import pytest

from appliance.errors import InvalidInput
from appliance.pipelines.language.chat_template import ChatTemplate

HI = [{"role": "user", "content": "Hi"}]
DOUBLED = "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"


def render(source: str, messages: Any = HI, most: int = 100_000) -> str | None:
    return ChatTemplate({"default": source}, {}).render(messages, None, {}, most)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro a() %}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}"
        + "".join(
            f"{{% macro b{n}() %}}{{{{ b{n - 1 or ''}() }}}}{{{{ b{n - 1 or ''}() }}}}{{% endmacro %}}"
            for n in range(1, 40)
        )
        + "{{ b39() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = '%s%s' % (n.x, n.x) %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x %}{{ n.x * 2 }}{% endset %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
        f"{DOUBLED}{{{{ n.x }}}}",
        f"{DOUBLED}{{{{ n.x | tojson }}}}",
        f"{DOUBLED}{{{{ n.x | string }}}}",
        f"{DOUBLED}{{{{ 'a' ~ n.x }}}}",
        f"{DOUBLED}{{{{ '%s' % n.x }}}}",
        f"{DOUBLED}{{{{ '{{}}'.format(n.x) }}}}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{% set t = 'a' * 100000 %}{{ ([t] * 100000) | join }}",
        "{% set t = 'a' * 100000 %}{{ t.join(['b'] * 100000) }}",
        "{{ ('\n' * 100000) | indent(9999) }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ lipsum(100) }}",
    ],
)
def test_it_is_refused(source: str) -> None:
    with pytest.raises(InvalidInput, match="cannot render"):
        render(source)


def test_nothing_is_computed_when_a_template_is_read() -> None:
    ChatTemplate({"default": "{{ '%1000000000d' % 1 }}{{ 'a' | center(1000000000) }}{{ 3 // 0 }}"}, {})


def test_each_rendering_has_a_budget_of_its_own() -> None:
    template = ChatTemplate({"default": "{% for i in range(90000) %}{% endfor %}{{ messages[0].content }}"}, {})
    assert [template.render(HI, None, {}, 1000) for _ in range(5)] == ["Hi"] * 5


def test_what_templates_do_they_may() -> None:
    source = (
        "{% for m in messages %}{{ loop.index0 ~ '/' ~ loop.length }}{{ '!' if loop.last }}"
        "{{ (m.role | upper).ljust(6) + '|' }}{{ m.content.split('</t>')[-1] | trim }}"
        "{{ ', '.join(['a', 'b']) }}{{ ['c', 'd'] | join('-') }}{{ '%s:%d' % ('x', 3) }}{{ 'aXa'.replace('X', 'Y') }}"
        "{{ {'k': [1, 2]} | tojson }}{{ [1, 'z'] }}{{ {'b': 1}.items() | list }}{{ none }}{{ nothing }}\n{% endfor %}"
        "{% for k, v in {'q': 1}.items() if v %}{{ k }}{{ v * 2 }}{% else %}no{% endfor %}"
    )
    messages = [{"role": "user", "content": "one</t> two "}, {"role": "tool", "content": "three"}]
    rest = "a, bc-dx:3aYa" + '{"k": [1, 2]}' + "[1, 'z'][('b', 1)]None"
    assert render(source, messages) == f"0/2USER  |two{rest}\n1/2!TOOL  |three{rest}\nq2"


def test_a_long_conversation_is_rendered() -> None:
    source = (
        "{% set n = namespace(s='') %}{% for m in messages %}{% set n.s = n.s ~ m.content %}{% endfor %}{{ n.s }}"
    )
    messages = [{"role": "user", "content": "x" * 100}] * 2000
    assert render(source, messages, 1_000_000) == "x" * 200_000
