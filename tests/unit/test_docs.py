"""The pages and the product say the same: settings, metrics, error codes, routes, commands, links."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer.main

from appliance.api.application import Application
from appliance.cli import app
from appliance.errors import ApplianceError
from appliance.metrics import Metrics
from appliance.settings import Settings, live

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    page
    for place in (".", "docs", "assets", "installer", "tests", "build")
    for page in (ROOT.glob("*.md") if place == "." else (ROOT / place).rglob("*.md"))
)
SHELL = {"", "sh", "bash", "console", "shell", "powershell", "bat"}
# The folders of one machine or person. What every system has (/etc/xdg, ~/.config) may be named.
MACHINE_PATH = re.compile(r"(?<![\w.~:/}-])/(?:home|root|work|tmp|mnt|media|Users|opt|srv)(?:/|\b)|\b[A-Za-z]:\\")


def text(page: str) -> str:
    return (DOCS / page).read_text("utf-8")


def rows(page: str) -> Iterator[list[str]]:
    """The cells of all table rows of a page. A bar in code (``\\|``) stays in its cell."""
    for line in text(page).splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code(cell: str) -> str | None:
    """What stands in backticks, if that is all of the cell."""
    found = re.fullmatch(r"`([^`]+)`", cell)
    return found[1] if found else None


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """(language, content) of a page's fenced blocks."""
    for found in re.finditer(r"^```([\w-]*)[^\n]*\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        yield found[1], found[2]


def shown(value: Any) -> str:
    """A default as the settings' page writes it."""
    if value is None or value == []:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# --- settings --------------------------------------------------------------------------------------------------


def test_every_setting_stands_in_the_page_and_nothing_else() -> None:
    found = {code(row[0]): row for row in rows("settings.md") if len(row) == 5 and row[1].startswith("`APPLIANCE_")}
    assert set(found) == set(Settings.model_fields)
    for name, row in found.items():
        assert name is not None
        assert row[1] == f"`APPLIANCE_{name.upper()}`"
        assert row[2] == shown(Settings.model_fields[name].get_default(call_default_factory=True)), name
        assert row[3] == ("at once" if live(name) else "after a restart"), name
        assert row[4], f"{name}: no meaning"


def test_variables_named_anywhere_exist() -> None:
    known = {f"APPLIANCE_{name.upper()}" for name in Settings.model_fields}
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for name in re.findall(r"\bAPPLIANCE_[A-Z_]+\b", page.read_text("utf-8")):
            assert name in known or name.startswith("APPLIANCE_TEST_"), f"{page.name}: {name}"


def test_the_example_file_is_a_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = [content for language, content in blocks(text("settings.md")) if language == "toml"]
    values = tomllib.loads(example)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"APPLIANCE_{name.upper()}", raising=False)
    monkeypatch.setattr("appliance.system.paths.settings_files", list)
    settings = Settings(**values)
    assert settings.port == values["port"]
    assert settings.queue_timeout_ms == values["queue_timeout_ms"]


# --- metrics and errors ----------------------------------------------------------------------------------------


def test_every_metric_stands_in_the_page_and_nothing_else() -> None:
    told = {name: row for row in rows("metrics.md") if len(row) == 4 and (name := code(row[0]))}
    families = list(Metrics().registry.collect())
    real = {f"{f.name}_total" if f.type == "counter" else f.name: f for f in families}
    assert set(told) == set(real)
    for name, family in real.items():
        assert told[name][1] == family.type, name


def test_the_labels_of_the_metrics() -> None:
    metrics = Metrics()
    labels = {
        f"{m._name}_total" if m._type == "counter" else m._name: m._labelnames
        for m in vars(metrics).values()
        if hasattr(m, "_labelnames")
    }
    for family in [*metrics.by_model.collect(), *metrics.state.collect()]:
        labels[f"{family.name}_total" if family.type == "counter" else family.name] = family._labelnames
    for row in rows("metrics.md"):
        if len(row) == 4 and (name := code(row[0])):
            assert tuple(re.findall(r"`(\w+)`", row[2])) == tuple(labels[name]), name


def kinds(root: type[ApplianceError]) -> Iterator[type[ApplianceError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == "appliance.errors":
            yield from kinds(child)


def test_every_error_code_stands_in_the_page_with_its_status() -> None:
    told = [(name, int(row[1])) for row in rows("errors.md") if len(row) == 4 and (name := code(row[0]))]
    # TryLater has no code of its own, it is only what its children have in common.
    real = {(kind.code, kind.status) for kind in kinds(ApplianceError) if kind.__name__ != "TryLater"}
    assert len(told) == len(set(told))
    assert set(told) == real


# --- routes and commands ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document. The routes touch their context only when they are called."""
    return Application(MagicMock(settings=Settings.model_construct())).openapi()


def test_every_route_stands_in_the_page_and_nothing_else(document: dict[str, Any]) -> None:
    told = {(row[0], code(row[1])) for row in rows("api.md") if row[0] in ("GET", "POST", "PUT", "DELETE")}
    real = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == real | {("GET", "/docs"), ("GET", "/openapi.json")}


def test_calls_in_the_pages_go_to_routes(document: dict[str, Any]) -> None:
    known = [re.sub(r"\{\w+\}", "[^/]+", path) for path in document["paths"]] + ["/docs", "/openapi.json", "/?"]
    for page in PAGES:
        for path in re.findall(r"(?:127\.0\.0\.1|localhost):11711(/[^\s'\"`)?#]*)", page.read_text("utf-8")):
            assert any(re.fullmatch(pattern, path) for pattern in known), f"{page.name}: {path}"


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(name, command) of all that are not hidden; groups are left out."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, child in command.commands.items():
        if not child.hidden:
            yield from commands(child, f"{name} {part}")


def test_every_command_stands_in_the_page_and_nothing_else() -> None:
    real = dict(commands(typer.main.get_command(app), "appliance"))
    assert set(re.findall(r"^## `([^`]+)`$", text("commands.md"), re.MULTILINE)) == set(real)
    assert {code(row[0]) for row in rows("commands.md") if len(row) == 2} - {None} == {"appliance", *real}


def test_every_flag_stands_in_the_page() -> None:
    root = typer.main.get_command(app)
    page = text("commands.md")
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", page))
    real = {"--help"}
    for _, command in [("appliance", root), *commands(root, "appliance")]:
        real |= {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
    assert told == real
    for name, command in commands(root, "appliance"):
        if name in ("appliance run", "appliance serve"):
            continue  # theirs are in the table
        part = page.partition(f"## `{name}`")[2].partition("\n## ")[0]
        for parameter in command.params:
            assert all(flag in part for flag in parameter.opts if flag.startswith("--")), name


# --- the pages themselves --------------------------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ +(.+?)\s*$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    content = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^()\s]+)\)", content):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        file, _, anchor = link.partition("#")
        assert not file.startswith("/"), link
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_shell_lines_name_no_machine_path(page: Path) -> None:
    for language, content in blocks(page.read_text("utf-8")):
        if language in SHELL:
            found = MACHINE_PATH.search(content)
            assert found is None, found


def test_every_page_is_in_the_index() -> None:
    index = text("README.md")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
