import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.errors import InvalidInput, ModelLoadError, ModelNotFound
from appliance.models import folder as folder_module
from appliance.models import listing
from appliance.models.repository import ModelFolder, Root, add, check_declared, remove, scan, valid_name
from appliance.models.spec import TensorSpec

posix = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")

Put = Callable[..., Path]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def put(models: Path) -> Put:
    """Writes files, by path in the models folder → text."""

    def putting(files: dict[str, str] | list[str]) -> Path:
        for name, text in files.items() if isinstance(files, dict) else ((name, "onnx") for name in files):
            path = models / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return models

    return putting


def one(models: Path, name: str = "yolo") -> ModelFolder:
    found = scan([Root(models)])[name]
    assert str(models) not in (found.error or "")
    return found


def served(model: ModelFolder) -> dict[str, str]:
    assert model.error is None, model.error
    base = model.path if model.path.is_dir() else model.path.parent
    return {file.version: file.path.relative_to(base).as_posix() for file in model.files}


# Layouts


def test_version_folders(put: Put) -> None:
    model = one(put(["yolo/1/model.onnx", "yolo/2/model.onnx", "yolo/10/model.onnx"]))
    assert served(model) == {"10": "10/model.onnx"}
    assert model.files[0].root == model.path.resolve()


@pytest.mark.parametrize(
    ("versions", "expected"),
    [("'latest'", ["10"]), ("'all'", ["1", "2", "10"]), ("[2, 1]", ["1", "2"]), ("[2, 5]", ["2"])],
)
def test_version_policy(put: Put, versions: str, expected: list[str]) -> None:
    model = one(put({f"yolo/{v}/model.onnx": "" for v in (1, 2, 10)} | {"yolo/model.toml": f"versions = {versions}"}))
    assert list(served(model)) == expected
    assert ("version 5 is asked for, but not there" in model.notes) == ("5" in versions)


def test_a_folder_without_versions(put: Put) -> None:
    assert served(one(put(["yolo/model.onnx"]))) == {"1": "model.onnx"}


def test_the_only_onnx_file_needs_no_name(put: Put) -> None:
    assert served(one(put(["yolo/yolov8n.onnx"]))) == {"1": "yolov8n.onnx"}


def test_pytorch_files(put: Put) -> None:
    models = put(
        [
            "a/1/model.pt2",
            "a/1/x.txt",
            "b/net.TS",
            "c/best.onnx",
            "c/best.pt",
            "d/model.pt",
            "d/other.pt2",
            "e.jit",
            "e.labels.txt",
        ]
    )
    found = scan([Root(models)])
    assert {name: model.error for name, model in found.items()} == dict.fromkeys("abcde")
    # What an ONNX file was exported from often lies beside it.
    paths = {name: model.files[0].path.relative_to(models).as_posix() for name, model in found.items()}
    assert paths == {"a": "a/1/model.pt2", "b": "b/net.TS", "c": "c/best.onnx", "d": "d/model.pt", "e": "e.jit"}
    (models / "c/model.toml").write_text("backend = 'pytorch'")
    assert served(one(models, "c")) == {"1": "best.pt"}


def test_of_bare_files_with_one_name_the_first_is_served(put: Put) -> None:
    models = put(["net.pt", "net.onnx"])
    assert [m.files[0].path.name for m in scan([Root(models)]).values()] == ["net.onnx"]


def test_tensors_that_model_toml_declares(put: Put) -> None:
    text = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 4]
[[outputs]]
name = "y"
datatype = "INT64"
"""
    for model in (
        one(put({"yolo/model.pt": "", "yolo/model.toml": text})),
        one(put({"b.pt": "", "b.toml": text}), "b"),
    ):
        assert model.declared is not None
        assert model.declared.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
        assert model.declared.outputs == (TensorSpec("y", "INT64", ()),)
        assert model.declared.max_batch is None
        (fault,) = check_declared(model.declared, (TensorSpec("x", "FP16", (-1, 4)),), model.declared.outputs)
        assert fault == "input 'x': model.toml says FP32, the model FP16"


def test_a_named_file(put: Put) -> None:
    model = one(put({"yolo/a.onnx": "", "yolo/b.onnx": "", "yolo/model.toml": "filename = 'b.onnx'"}))
    assert served(model) == {"1": "b.onnx"}


def test_a_bare_file_with_its_labels_and_settings(put: Put) -> None:
    model = one(put({"yolo.onnx": "", "yolo.labels.txt": "cat\ndog\n", "yolo.toml": "instances = 2", "n.txt": ""}))
    assert served(model) == {"1": "yolo.onnx"}
    assert (model.labels, model.config.instances) == (("cat", "dog"), 2)
    assert model.files[0].root == model.path.parent.resolve()


def test_a_bare_file_of_a_longer_name_keeps_its_own_files(put: Put) -> None:
    models = put({"a.onnx": "", "a.b.onnx": "", "a.b.toml": "instances = 2", "a.onnx.data": ""})
    assert (one(models, "a").config.instances, one(models, "a.b").config.instances) == (1, 2)
    before = {name: model.files[0].fingerprint for name, model in scan([Root(models)]).items()}
    (models / "a.onnx.data").write_text("changed")
    after = {name: model.files[0].fingerprint for name, model in scan([Root(models)]).items()}
    assert (before["a"] == after["a"], before["a.b"] == after["a.b"]) == (False, True)


def test_labels(put: Put) -> None:
    models = put({"yolo/model.onnx": "", "yolo/labels.txt": "\ufeffKatze \r\n\r\nHund, groß\r\n\r\n"})
    assert one(models).labels == ("Katze", "", "Hund, groß")


def test_labels_that_are_spaces(put: Put) -> None:
    models = put({"yolo/model.onnx": "", "yolo/labels.txt": "a\n \nb \n\u3000\n\u2028\n"})
    assert one(models).labels == ("a", " ", "b", "\u3000", "\u2028")


@pytest.mark.parametrize("backend", ["fake", "pipeline"])
def test_backends_without_a_file(put: Put, backend: str) -> None:
    model = one(put({"yolo/model.toml": f"backend = '{backend}'\npipeline.task = 'ocr'"}))
    assert served(model) == {"1": "."}
    assert model.files[0].root == model.path.resolve()


def test_versions_of_a_fake(put: Put) -> None:
    model = one(put({"yolo/model.toml": "backend = 'fake'\nversions = 'all'", "yolo/1/x": "", "yolo/2/x": ""}))
    assert served(model) == {"1": "1", "2": "2"}


def test_a_triton_repository(put: Put) -> None:
    config = """
        name: "yolo" platform: "onnxruntime_onnx" max_batch_size: 4 default_model_filename: "net.onnx"
        input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] label_filename: "names.txt" }
        version_policy { latest { num_versions: 2 } }
        optimization { graph { level: 1 } }
    """
    versions = {f"yolo/{version}/net.onnx": "" for version in (1, 2, 3)}
    model = one(put(versions | {"yolo/config.pbtxt": config, "yolo/names.txt": "a\nb"}))
    assert served(model) == {"2": "2/net.onnx", "3": "3/net.onnx"}
    assert model.labels == ("a", "b")
    assert model.notes == ("config.pbtxt: optimization is not used",)
    assert model.declared is not None
    assert (model.declared.max_batch, model.declared.inputs[0].shape) == (4, (-1, 8))


def test_a_triton_model_of_several_files(put: Put) -> None:
    model = one(put(["yolo/1/model.onnx/model.onnx", "yolo/1/model.onnx/w.bin"]))
    assert served(model) == {"1": "1/model.onnx/model.onnx"}


def test_a_triton_repository_without_a_config(put: Put) -> None:
    assert one(put(["yolo/1/model.onnx"])).declared is None


# What cannot be served is listed, and told


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"yolo/readme.md": ""}, "there is no model file (.onnx, .pt2, .pt, .ts, .jit) in it"),
        ({"yolo/model.pth": ""}, "found model.pth, which is not served"),
        (
            {"yolo/model.pt": "", "yolo/model.toml": "backend = 'onnx'"},
            "there is no .onnx file in it (found model.pt,",
        ),
        ({"yolo/a.onnx": "", "yolo/model.toml": "backend = 'pytorch'"}, "(found a.onnx, which is not served)"),
        ({"yolo/model.pt": "", "yolo/model.jit": ""}, "several model files (model.jit, model.pt); name one"),
        ({"yolo.pt": "", "yolo.toml": "backend = 'onnx'"}, "need a folder"),
        ({"yolo/a.onnx": "", "yolo/b.onnx": ""}, "several model files (a.onnx, b.onnx); name one"),
        ({"yolo/1/readme.md": ""}, "version 1 is not served: there is no model file ("),
        ({"yolo/model.onnx/x": ""}, "model.onnx: it is not a regular file"),
        ({"yolo/a.onnx": "", "yolo/model.toml": "filename = 'b.onnx'"}, "b.onnx is missing"),
        ({"yolo/a.onnx": "", "yolo/model.toml": "filename = 'a.pth'"}, "'a.pth' is not a model file ("),
        ({"yolo/a.onnx": "", "yolo/model.toml": "\nfoo = 1"}, "model.toml line 2: unknown key 'foo'"),
        ({"yolo/a.onnx": "", "yolo/model.toml": "versions = [2]"}, "there are no version folders"),
        ({"yolo/1/a.onnx": "", "yolo/model.toml": "versions = [2]"}, "version 2 is asked for, but not there"),
        ({"yolo/a.onnx": "", "yolo/config.pbtxt": "foo: 1"}, "config.pbtxt line 1: unknown field 'foo'"),
        ({"yolo/a.onnx": "", "yolo/config.pbtxt": "", "yolo/model.toml": ""}, "are both there"),
        (
            {"yolo/a.onnx": "", "yolo/config.pbtxt": 'output { name: "y" label_filename: "l.txt" }'},
            "l.txt: the file with the labels is missing",
        ),
        ({"yolo.onnx": "", "yolo.toml": "backend = 'fake'"}, "need a folder"),
        ({"yolo.onnx": "", "yolo.toml": "x"}, "yolo.toml line 1"),
        ({"yolo/a.onnx": "", "yolo/labels.txt": "x" * (1 << 20) + "y"}, "labels.txt: it is larger than 1 MB"),
    ],
)
def test_faults(put: Put, files: dict[str, str], words: str) -> None:
    model = one(put(files))
    assert words in (model.error or "")
    assert model.files == ()


def test_text_that_is_not_utf8(put: Put) -> None:
    models = put(["yolo/model.onnx"])
    (models / "yolo/labels.txt").write_bytes("a\nKätzchen".encode("latin-1"))
    assert one(models).error == "labels.txt line 2: it is not UTF-8 text"


@pytest.mark.parametrize("name", ["my model", "ümlaut", "-x", "a" * 129, "con", "nul.x", "a+b"])
def test_names_that_are_not_valid(put: Put, name: str) -> None:
    if os.name == "nt" and name in ("con", "nul.x"):
        pytest.skip("Windows has no such folders")
    assert "the name must begin" in (one(put([f"{name}/model.onnx"]), name).error or "")


def test_valid_names() -> None:
    assert all(valid_name(name) for name in ("a", "yolo-v8.2_n", "0", "a" * 128, "console"))
    bad = ("", ".", "..", "../a", "a/b", "a\\b", "a\n", "a\0", ".a", "a.", "C:", "%2e%2e", "NUL", "com1.onnx")
    assert not any(valid_name(name) for name in bad)


def test_notes(put: Put) -> None:
    models = put(["yolo/1/model.onnx", "yolo/01/model.onnx", "yolo/model.onnx", "yolo.onnx", "yolo.toml", "yolo/2/x"])
    told = "\n".join(one(models).notes)
    assert "folder '01' is not a version" in told
    assert "the model files beside the version folders are not used" in told
    assert "yolo.onnx beside the folder is not used" in told
    assert "yolo.toml beside the folder is not used" in told
    assert "version 2 is not served: there is no model file (" in told


def test_what_is_ignored(put: Put) -> None:
    models = put([".git/x", "~backup/m.onnx", "copy.onnx.part", "a.tmp/model.onnx", "readme.md", "__pycache__/x"])
    assert scan([Root(models)]) == {}


# Roots


def test_the_first_root_wins(tmp_path: Path) -> None:
    roots = [Root(tmp_path / "user"), Root(tmp_path / "embedded", read_only=True), Root(tmp_path / "missing")]
    for root in roots[:2]:
        (root.path / "yolo").mkdir(parents=True)
        (root.path / "yolo" / "model.onnx").write_text("x")
    (roots[1].path / "more.onnx").write_text("x")
    found = scan(roots)
    assert found["yolo"].path == roots[0].path / "yolo"
    assert [model.read_only for model in (found["yolo"], found["more"])] == [False, True]
    assert "another model of this name" in found["yolo"].notes[0]


def test_a_root_that_cannot_be_read(put: Put, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert list(scan([Root(tmp_path / "file"), Root(put(["yolo.onnx"]))])) == ["yolo"]
    assert "cannot be read" in caplog.text
    assert str(tmp_path) not in caplog.text


# Links


@posix
def test_links_that_lead_outside(put: Put, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "1").mkdir(parents=True)
    (outside / "model.onnx").write_text("x")
    (outside / "1" / "model.onnx").write_text("x")
    models = put(["a/readme.md", "b/readme.md", "d/model.onnx"])
    (models / "a" / "1").symlink_to(outside / "1")
    (models / "b" / "model.onnx").symlink_to(outside / "model.onnx")
    (models / "c").symlink_to(outside)
    (models / "d" / "labels.txt").symlink_to(outside / "model.onnx")
    (models / "e.onnx").symlink_to(outside / "model.onnx")
    (models / "f").symlink_to(models / "nowhere")
    found = scan([Root(models)])
    assert sorted(found) == ["a", "b", "c", "d", "e", "f"]
    for model in found.values():
        assert "leads outside" in (model.error or ""), model.name
        assert model.files == ()


@posix
def test_links_within_the_models_folder(put: Put) -> None:
    models = put(["store/3/model.onnx"])
    (models / "yolo").mkdir()
    (models / "yolo" / "1").symlink_to(models / "store" / "3")
    (models / "alias").symlink_to("store")
    assert served(one(models)) == {"1": "1/model.onnx"}
    assert one(models).files[0].root == (models / "store").resolve()
    assert one(models, "alias").files[0].root == (models / "store").resolve()


@posix
def test_a_models_folder_that_is_a_link_itself(put: Put, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(put(["yolo/1/model.onnx"]))
    assert served(one(tmp_path / "link")) == {"1": "1/model.onnx"}


@posix
def test_links_in_a_circle_end(put: Put) -> None:
    models = put(["yolo/1/model.onnx"])
    (models / "yolo" / "1" / "again").symlink_to(models / "yolo")
    assert "nested more than" in (one(models).error or "")


@posix
def test_pipes_are_not_opened(put: Put) -> None:
    models = put(["a/x", "b/model.onnx"])
    os.mkfifo(models / "a" / "model.onnx")
    os.mkfifo(models / "b" / "model.toml")
    assert "not a regular file" in (one(models, "a").error or "")
    assert one(models, "b").error == "model.toml: it is not a regular file"


# Change


def test_the_fingerprint_changes_with_any_file_of_the_version(put: Put) -> None:
    names = ["yolo/1/model.onnx", "yolo/1/sub/w.bin", "yolo/labels.txt", "yolo/model.toml"]
    models = put(dict.fromkeys(names, "") | {"yolo/2/model.onnx": "", "other/model.onnx": ""})
    (models / "yolo/model.toml").write_text("versions = [1]")
    seen = {one(models).files[0].fingerprint}
    assert {one(models).files[0].fingerprint} == seen
    for count, name in enumerate(names, start=2):
        path = models / name
        path.write_text("versions = [1]\n" if name.endswith("toml") else "changed")
        seen.add(one(models).files[0].fingerprint)
        assert len(seen) == count, name
    before = one(models).files[0].fingerprint
    (models / "yolo/2/model.onnx").write_text("changed")
    (models / "other/model.onnx").write_text("changed")
    assert one(models).files[0].fingerprint == before
    (models / "yolo/1/sub/w.bin").unlink()
    assert one(models).files[0].fingerprint != before


def test_a_touched_file_changes_the_fingerprint(put: Put) -> None:
    models = put(["yolo/model.onnx"])
    before = one(models).files[0].fingerprint
    os.utime(models / "yolo" / "model.onnx", ns=(1, 1))
    assert one(models).files[0].fingerprint != before


def test_files_that_vanish_during_the_scan(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    models = put(["a/1/model.onnx", "a/2/model.onnx", "b/model.onnx", "c.onnx"])
    real = listing.entries

    def vanishing(folder: Path | str, root: str) -> list[listing.Entry]:
        if Path(folder).name in ("2", "b"):
            raise FileNotFoundError(2, "No such file or directory", str(folder))
        return real(folder, root)

    monkeypatch.setattr(folder_module, "entries", vanishing)
    found = scan([Root(models)])
    assert served(found["a"]) == {"1": "1/model.onnx"}
    assert found["b"].error == "the folder cannot be read: No such file or directory"
    assert served(found["c"]) == {"1": "c.onnx"}


def test_two_thousand_models(models: Path) -> None:
    for index in range(2000):
        folder = models / f"m{index}" / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").touch()
    start = time.perf_counter()
    found = scan([Root(models)])
    took = time.perf_counter() - start
    assert len(found) == 2000
    assert not any(model.error for model in found.values())
    assert took < 3  # 0.3 s on a quiet core


def test_importing_is_cheap() -> None:
    script = (
        "import sys; import appliance.models.repository, appliance.models.triton, appliance.models.onnx_file\n"
        "import appliance.models.torch_file\n"
        "print(*sorted({'google.protobuf', 'numpy', 'onnx', 'onnxruntime', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Adding and removing


@pytest.fixture
def made(make_model: Callable[..., object], write: Put) -> Path:
    """A model file with external data, labels and settings beside it, outside of the models folder."""
    path = write(make_model({"location": "net.onnx.data", "length": "32"}), "from/net.onnx")
    write(bytes(32), "from/net.onnx.data")
    write(b"a\nb\n", "from/net.labels.txt")
    write(b"instances = 2", "from/net.toml")
    write(b"", "from/other.txt")
    return path


def every(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_adding_a_file(made: Path, models: Path) -> None:
    assert add(models / "new", made) == "net"
    model = one(models / "new", "net")
    assert (model.labels, model.config.instances) == (("a", "b"), 2)
    assert names(models / "new") == ["net/labels.txt", "net/model.onnx", "net/model.toml", "net/net.onnx.data"]
    assert every(models / "new") == ["net"]  # nothing temporary is left


def test_adding_a_folder(put: Put, tmp_path: Path, made: Path) -> None:
    source = tmp_path / "triton" / "yolo"
    (source / "1").mkdir(parents=True)
    (source / "1" / "model.onnx").write_bytes(made.read_bytes())
    (source / "1" / "net.onnx.data").write_bytes(bytes(32))
    (source / "config.pbtxt").write_text('name: "yolo"')
    models = put([])
    assert add(models, source) == "yolo"
    assert served(one(models)) == {"1": "1/model.onnx"}
    with pytest.raises(ModelLoadError, match="name is 'yolo', but the folder is 'zebra'"):
        add(models, source, "zebra")
    assert every(models) == ["yolo"]


def test_adding_is_refused(made: Path, put: Put, tmp_path: Path, write: Put) -> None:
    models = put(["taken/model.onnx", "Bare.onnx"])
    for name in ("taken", "TAKEN", "bare"):
        with pytest.raises(InvalidInput, match="already"):
            add(models, made, name)
    for name in ("../x", "a b", ".x", "nul"):
        with pytest.raises(InvalidInput, match="cannot be a model's name"):
            add(models, made, name)
    with pytest.raises(ModelLoadError, match="no such file"):
        add(models, tmp_path / "none.onnx")
    with pytest.raises(ModelLoadError, match=r"not a model file \(\.onnx, "):
        add(models, made.parent / "other.txt")
    with pytest.raises(ModelLoadError, match="it is text"):
        add(models, write(b"this is not a model\n", "from/bad.onnx"))
    with pytest.raises(ModelLoadError, match="holds the models folder"):
        add(models, models.parent, "all")
    with pytest.raises(ModelLoadError, match=r"there is no model file"):
        (tmp_path / "empty").mkdir()
        add(models, tmp_path / "empty")
    assert names(models) == ["Bare.onnx", "taken/model.onnx"]
    assert every(models) == ["Bare.onnx", "taken"]


@posix
def test_adding_a_folder_with_links(made: Path, models: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (made.parent / "link.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelLoadError, match=r"link\.txt: a link leads outside of the folder that is added"):
        add(models, made.parent, "net")
    (made.parent / "link.txt").unlink()
    os.mkfifo(made.parent / "pipe")
    with pytest.raises(ModelLoadError, match="pipe: it is not a regular file"):
        add(models, made.parent, "net")
    assert every(models) == []


def test_removing(put: Put) -> None:
    models = put(
        ["a/1/model.onnx", "ab.onnx", "b.onnx", "b.toml", "b.labels.txt", "b.onnx.data", "b.c.onnx", "b.c.toml"]
    )
    remove(models, "a")
    assert names(models) == ["ab.onnx", "b.c.onnx", "b.c.toml", "b.labels.txt", "b.onnx", "b.onnx.data", "b.toml"]
    remove(models, "b")
    assert names(models) == ["ab.onnx", "b.c.onnx", "b.c.toml"]
    for name in ("a", "b", "../models", "..", "", "b.c.toml", "AB"):
        with pytest.raises(ModelNotFound):
            remove(models, name)
    with pytest.raises(ModelNotFound):
        remove(models / "none", "a")
    assert every(models) == ["ab.onnx", "b.c.onnx", "b.c.toml"]


@posix
def test_removing_a_link_leaves_what_it_leads_to(put: Put, tmp_path: Path) -> None:
    models = put([])
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.onnx").write_text("x")
    (models / "yolo").symlink_to(tmp_path / "outside")
    remove(models, "yolo")
    assert every(models) == []
    assert (tmp_path / "outside" / "model.onnx").exists()
