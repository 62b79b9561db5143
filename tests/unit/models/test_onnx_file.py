import os
import random
import subprocess
import sys
import textwrap
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from appliance.errors import ModelLoadError
from appliance.models import onnx_file
from appliance.models.onnx_file import OnnxFacts, inspect

Make = Callable[..., onnx.ModelProto]
Write = Callable[..., Path]

posix = pytest.mark.skipif(os.name == "nt", reason="pipes and links of this kind are POSIX's")


def look(path: Path) -> OnnxFacts:
    return inspect(path, path.parent)


def fault(path: Path, root: Path | None = None) -> str:
    with pytest.raises(ModelLoadError) as caught:
        inspect(path, root or path.parent)
    told = caught.value.message
    assert told.startswith(f"{path.name}: ")
    assert str(path.parent) not in told
    return told


def test_a_plain_model(make_model: Make, write: Write) -> None:
    facts = look(write(make_model()))
    assert (facts.ir_version, facts.opsets, facts.producer) == (9, {"ai.onnx": 17}, "tests")
    assert (facts.nodes, facts.external, facts.custom_domains, facts.function_domains) == (1, (), (), ())
    assert facts.missing_operators() is None


def test_metadata_is_read_whole(make_model: Make, write: Write) -> None:
    made = make_model()
    made.metadata_props.add(key="character", value="字" * 10_000)
    assert look(write(made)).metadata == {"character": "字" * 10_000}


def subgraph(depth: int, leaf: list[Any]) -> Any:
    made = helper.make_graph(leaf, "leaf", [], [])
    for _ in range(depth - 1):
        made = helper.make_graph([helper.make_node("If", ["c"], ["d"], then_branch=made)], "g", [], [])
    return helper.make_node("If", ["c"], ["d"], then_branch=made)


def test_custom_operators_are_found_in_subgraphs_and_functions(make_model: Make, write: Write) -> None:
    inner = subgraph(3, [helper.make_node("Foo", [], [], domain="com.acme")])
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Bar", ["a"], ["b"], domain="org.other")], []
    )
    used = helper.make_node("Twice", ["x"], ["y"], domain="local")
    built_in = helper.make_node("Gelu", ["x"], ["z"], domain="com.microsoft")
    facts = look(write(make_model(nodes=[inner, used, built_in], functions=[function])))
    assert facts.custom_domains == ("com.acme", "org.other")
    assert facts.function_domains == ("local",)
    told = facts.missing_operators()
    assert told == (
        "operator library needed: domain 'com.acme', 'org.other' is not built in, "
        "and libraries from model folders are never loaded"
    )


def test_an_operator_that_no_function_of_its_domain_defines_is_custom(make_model: Make, write: Write) -> None:
    function = helper.make_function("local", "Twice", ["a"], ["b"], [], [])
    node = helper.make_node("Thrice", ["x"], ["y"], domain="local")
    facts = look(write(make_model(nodes=[node], functions=[function])))
    assert facts.custom_domains == ("local",)


def test_nesting_is_bounded(make_model: Make, write: Write) -> None:
    assert look(write(make_model(nodes=[subgraph(31, [])]))).nodes == 31
    assert "nested more than 32 deep" in fault(write(make_model(nodes=[subgraph(32, [])])))


# What is not a model


def zipped() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", "x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"hello, this is a note\n" * 10, "it is text"),
        ("Schöne Grüße\n".encode() * 100, "it is text"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"\n\n <html>sign in</html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (zipped(), "zip archive"),
        (b"\x80\x02}q\x00X\x05\x00\x00\x00helloq\x01K\x01s.", "pickle"),
        (b"\x1f\x8b\x08\x00" + bytes(100), "gzip"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(100), "TensorFlow Lite"),
        (b"\x38\x00\x00\x00ORTM" + bytes(100), ".ort"),
        (b'\x10\x00\x00\x00\x00\x00\x00\x00{"a": {}}       ' + bytes(10), "safetensors"),
        (bytes(5000), "nothing but zeros"),
        (b"\x08\x09", "no graph"),
        (b"\xff" * 100, "damaged, cut off or not ONNX"),
    ],
)
def test_what_is_not_a_model_is_named(write: Write, content: bytes, words: str) -> None:
    assert words in fault(write(content))


def test_a_cut_off_model_is_told(make_model: Make, write: Write) -> None:
    whole = make_model().SerializeToString()
    assert "the file ends within the field" in fault(write(whole[:-3]))


def test_a_file_over_2_gib_is_told_without_reading_it(write: Write) -> None:
    path = write(b"\x08\x09")
    with path.open("r+b") as file:
        file.truncate(2**31 + 5)  # sparse
    assert "larger than 2 GiB" in fault(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "missing" in fault(tmp_path / "none.onnx")
    (tmp_path / "folder.onnx").mkdir()
    assert "not a regular file" in fault(tmp_path / "folder.onnx")


@posix
def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    assert "not a regular file" in fault(tmp_path / "model.onnx")


@posix
def test_a_model_that_is_a_link_out_of_its_folder(make_model: Make, write: Write, tmp_path: Path) -> None:
    write(make_model(), "elsewhere/secret.onnx")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.onnx").symlink_to(tmp_path / "elsewhere" / "secret.onnx")
    assert "a link leads outside" in fault(tmp_path / "m" / "model.onnx")


# External data


def test_external_data_beside_the_model(make_model: Make, write: Write) -> None:
    path = write(make_model({"location": "sub/w.bin", "offset": "4", "length": "32"}))
    write(bytes(36), "m/sub/w.bin")
    assert inspect(path, path.parent).external == ("sub/w.bin",)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/etc/passwd", "absolute"),
        ("../w.bin", "leads upwards"),
        ("sub/../../w.bin", "leads upwards"),
        ("..", "leads upwards"),
        ("C:/w.bin", "names a drive"),
        ("c:w.bin", "names a drive"),
        ("\\\\host\\share\\w.bin", "another machine"),
        ("//host/share/w.bin", "another machine"),
        ("\\w.bin", "absolute"),
        ("..\\w.bin", "backslash"),
        ("w.bin:stream", "no file name may have"),
        ("*/_ORT_MEM_ADDR_/*", "no file name may have"),
        ("w\0.bin", "control characters"),
        ("a\nb", "control characters"),
        ("", "the location is empty"),
        ("x" * 1500, "too long"),
        ("x" * 100_000, "too long"),
        ("é" * 40_000, "too long"),
        ("none.bin", "'none.bin': the file is missing"),
        ("m.onnx/x", "the file is missing"),
        ("sub", "not a regular file"),
        (".", "not a regular file"),
    ],
)
def test_external_data_that_is_refused(make_model: Make, write: Write, location: str, words: str) -> None:
    write(bytes(64), "w.bin")
    write(bytes(64), "m/sub/w.bin")
    told = fault(write(make_model({"location": location}), "m/m.onnx"))
    assert words in told
    assert "external data" in told
    assert "\n" not in told and "\0" not in told and len(told) < 300


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": "40", "length": "32"}, "has 64 bytes, but a tensor needs 32 from byte 40"),
        ({"offset": "65"}, "from byte 65"),
        ({"length": "9999999999999999999"}, "needs 9999999999999999999"),
        ({"offset": "-1"}, "offset is not a number of bytes"),
        ({"length": "0x10"}, "length is not a number of bytes"),
        ({"length": "9" * 30}, "length is not a number of bytes"),
    ],
)
def test_external_data_that_is_too_short(make_model: Make, write: Write, entries: dict[str, str], words: str) -> None:
    write(bytes(64), "m/w.bin")
    assert words in fault(write(make_model({"location": "w.bin"} | entries)))


@posix
def test_external_data_that_is_a_link_or_a_pipe(make_model: Make, write: Write, tmp_path: Path) -> None:
    outside = write(bytes(64), "outside.bin")
    path = write(make_model({"location": "w.bin"}))
    link = path.parent / "w.bin"
    link.symlink_to(outside)
    assert "a link leads outside" in fault(path)
    assert inspect(path, tmp_path).external == ("w.bin",)  # a wider root holds it
    link.unlink()
    link.symlink_to(link)
    assert "cannot be looked at" in fault(path)
    link.unlink()
    os.mkfifo(link)
    assert "not a regular file" in fault(path)


def places(make_model: Make, make_tensor: Callable[..., TensorProto]) -> dict[str, onnx.ModelProto]:
    """A model for each place where a tensor may be."""
    bad = make_tensor("w", {"location": "../w.bin"})
    sparse = onnx.SparseTensorProto()
    sparse.values.CopyFrom(bad)
    of_attribute = {name: helper.make_node("Constant", [], ["c"]) for name in ("t", "tensors", "sparse", "sparses")}
    for name, node in of_attribute.items():
        attribute = node.attribute.add(name="value")
        if name == "t":
            attribute.t.CopyFrom(bad)
        elif name == "tensors":
            attribute.tensors.add().CopyFrom(bad)
        elif name == "sparse":
            attribute.sparse_tensor.CopyFrom(sparse)
        else:
            attribute.sparse_tensors.add().CopyFrom(sparse)
    found = {name: make_model(nodes=[node]) for name, node in of_attribute.items()}
    found["subgraph"] = make_model(nodes=[subgraph(4, [of_attribute["t"]])])
    function = helper.make_function("local", "F", [], [], [of_attribute["t"]], [])
    found["function"] = make_model(functions=[function])
    default = helper.make_function("local", "F", [], [], [], [], attribute_protos=[of_attribute["t"].attribute[0]])
    found["function default"] = make_model(functions=[default])
    found["sparse initializer"] = make_model()
    found["sparse initializer"].graph.sparse_initializer.add().CopyFrom(sparse)
    found["training"] = make_model()
    found["training"].training_info.add().initialization.initializer.add().CopyFrom(bad)
    not_marked = make_tensor("w", {"location": "../w.bin"})
    not_marked.data_location = TensorProto.DEFAULT
    found["not marked as external"] = make_model()
    found["not marked as external"].graph.initializer.add().CopyFrom(not_marked)
    return found


def test_external_data_is_found_wherever_a_tensor_may_be(
    make_model: Make, make_tensor: Callable[..., TensorProto], write: Write
) -> None:
    for place, made in places(make_model, make_tensor).items():
        assert "leads upwards" in fault(write(made)), place


def test_graphs_that_protobuf_would_merge_are_all_looked_at(make_model: Make, write: Write) -> None:
    twice = make_model().SerializeToString() + make_model({"location": "../w.bin"}).SerializeToString()
    assert "leads upwards" in fault(write(twice))


def context(**attributes: object) -> Any:
    return helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **attributes)


def test_a_compiled_context_in_a_file(make_model: Make, write: Write) -> None:
    outside = make_model(nodes=[context(embed_mode=0, ep_cache_context="../engine.bin")])
    assert "compiled context '../engine.bin': the location leads upwards" in fault(write(outside))
    refit = make_model(nodes=[context(embed_mode=1, ep_cache_context=b"\0\1", onnx_model_filename="/m.onnx")])
    assert "absolute" in fault(write(refit))
    embedded = write(make_model(nodes=[context(embed_mode=1, ep_cache_context=b"\xff\0..//")]))
    assert inspect(embedded, embedded.parent).nodes == 1
    write(b"x", "m/engine.bin")
    beside = write(make_model(nodes=[context(embed_mode=0, ep_cache_context="engine.bin")]))
    assert inspect(beside, beside.parent).external == ("engine.bin",)


def test_nothing_but_the_model_is_opened(make_model: Make, write: Write, tmp_path: Path) -> None:
    """An audit hook sees every file that Python opens; it cannot be taken back, so in a process of its own."""
    write(bytes(64), "m/w.bin")
    good = write(make_model({"location": "w.bin"}))
    bad = [
        write(make_model({"location": location}), f"m/bad{index}.onnx")
        for index, location in enumerate(("/etc/passwd", "../secret.bin", "//host/x", "missing.bin"))
    ]
    write(b"secret", "secret.bin")
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from appliance.errors import ModelLoadError
        from appliance.models.onnx_file import inspect
        opened = []
        paths = [Path(p) for p in sys.argv[1:]]
        sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
        for path in paths:
            try:
                inspect(path, path.parent)
            except ModelLoadError:
                pass
        print(*opened, sep="\\n")
        """
    )
    paths = [str(good), *map(str, bad)]
    done = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == paths


# Cost


def test_weights_are_not_read_into_memory(make_model: Make, write: Write) -> None:
    made = make_model()
    made.graph.initializer.add(name="big", data_type=TensorProto.UINT8, dims=[32 << 20], raw_data=bytes(32 << 20))
    path = write(made)
    del made
    tracemalloc.start()
    inspect(path, path.parent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_long_lists_of_numbers_take_no_time(make_model: Make, write: Write) -> None:
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    node.attribute.add(name="nodes_values").floats.extend([0.5] * 500_000)
    node.attribute.add(name="nodes_featureids").ints.extend(range(500_000))
    path = write(make_model(nodes=[node]))
    start = time.perf_counter()
    assert inspect(path, path.parent).nodes == 1
    assert time.perf_counter() - start < 1


def test_a_file_made_to_be_slow_is_given_up(make_model: Make, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "MAX_FIELDS", 1000)
    assert "more parts than can be checked" in fault(write(b"\x10\x01" * 2000))
    assert "more parts than can be checked" in fault(write(make_model().SerializeToString() + b"\x10\x01" * 2000))


def test_what_is_kept_is_bounded(make_model: Make, make_tensor: Callable[..., TensorProto], write: Write) -> None:
    kinds = [helper.make_node(f"Op{index}", [], []) for index in range(10_001)]
    assert "more than 10000 kinds of operators" in fault(write(make_model(nodes=kinds)))
    many = make_tensor("w", {f"k{index}": "" for index in range(300)})
    made = make_model()
    made.graph.initializer.add().CopyFrom(many)
    assert "more than 256 entries" in fault(write(made))


# Fuzz: damage of any kind ends in words


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "w.bin").write_bytes(bytes(64))
    external = TensorProto(name="w", data_type=1, dims=[8], data_location=TensorProto.EXTERNAL)
    external.external_data.add(key="location", value="w.bin")
    external.external_data.add(key="length", value="32")
    nodes = [
        subgraph(3, [helper.make_node("Foo", [], [], domain="com.acme", ints=[1, 2, 3], floats=[0.5], name="n")]),
        context(embed_mode=0, ep_cache_context="w.bin"),
    ]
    function = helper.make_function("local", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [])
    made = helper.make_model(helper.make_graph(nodes, "g", [], [], [external]), functions=[function])
    made.metadata_props.add(key="k", value="v")
    return folder / "model.onnx", made.SerializeToString()


def survives(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        inspect(path, path.parent)
    except ModelLoadError as error:
        assert error.message.startswith("model.onnx: ")


def test_every_truncation(whole: tuple[Path, bytes]) -> None:
    path, content = whole
    survives(path, content)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        try:
            inspect(path, path.parent)
        except ModelLoadError:
            continue
        # Only where a whole field ends can a shorter file be a model.
        onnx.ModelProto.FromString(content[:length])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bytes(whole: tuple[Path, bytes], data: st.DataObject) -> None:
    path, content = whole
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    survives(path, bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200))
def test_random_bytes(whole: tuple[Path, bytes], content: bytes) -> None:
    survives(whole[0], content)


def test_damage_never_hides_external_data(whole: tuple[Path, bytes]) -> None:
    """Where protobuf reads a damaged file, every location that it finds was judged here as well."""
    path, content = whole
    chance = random.Random(7)  # noqa: S311 - the same damage each time is the point
    judged = 0
    for _ in range(3000):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(content))] = chance.randrange(256)
        read = onnx.ModelProto()
        try:
            read.ParseFromString(bytes(damaged))
        except DecodeError:
            continue
        path.write_bytes(bytes(damaged))
        try:
            facts = inspect(path, path.parent)
        except ModelLoadError:
            continue
        judged += 1
        named = {e.value for t in read.graph.initializer for e in t.external_data if e.key == "location"}
        assert named <= set(facts.external)
    assert judged > 100
