"""Hostile model files: nothing in them runs, whatever position the payload is in.

Each case rewrites a good archive with one change.  A payload that ran would create a file; the test looks for it.
"""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from emmy.errors import ModelFileError
from emmy.frontend.archive import FILE_OPERATIONS, check_expression
from emmy.frontend.files import load_file
from emmy.frontend.pickles import globals_of, is_plain

Members = dict[str, bytes]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.table = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) * self.table) * x.shape[1]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """Members of a good archive, without the top folder."""
    path = tmp_path_factory.mktemp("good") / "good.pt2"
    seq = torch.export.Dim("seq", min=1, max=64)
    program = torch.export.export(Model(), (torch.randn(2, 16, 8),), dynamic_shapes=({1: seq},), strict=False)
    torch.export.save(program, path)
    with zipfile.ZipFile(path) as z:
        return {n.partition("/")[2]: z.read(n) for n in z.namelist()}


def write(path: Path, members: Members, root: str = "m/") -> Path:
    with zipfile.ZipFile(path, "w") as z:
        for name, data in members.items():
            z.writestr(root + name, data)
    return path


class Runs:
    """Pickles as a call that leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def hostile_save(mark: Path) -> bytes:
    """What `torch.save` writes for an object that runs when it is loaded."""
    buffer = io.BytesIO()
    torch.save({"x": Runs(mark)}, buffer)
    return buffer.getvalue()


def refused(path: Path, mark: Path, says: str = "") -> None:
    with pytest.raises(ModelFileError) as e:
        load_file(path)
    assert not mark.exists()
    assert says in str(e.value)


def test_the_rewritten_archive_itself_loads(good: Members, tmp_path: Path) -> None:
    """The cases below are refused for their one change, not for being rewritten."""
    assert len(load_file(write(tmp_path / "m.pt2", good)).graph.nodes) == 4


def test_the_payload_would_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    torch.load(io.BytesIO(hostile_save(mark)), weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/model.pt"])
@pytest.mark.parametrize("form", ["zip", "bare", "legacy"])
def test_pickled_payload_with_a_call_is_refused(good: Members, tmp_path: Path, member: str, form: str) -> None:
    mark = tmp_path / "mark"
    data = hostile_save(mark)
    if form == "bare":
        data = pickle.dumps(Runs(mark))
    elif form == "legacy":
        buffer = io.BytesIO()
        torch.save(Runs(mark), buffer, _use_new_zipfile_serialization=False)
        data = buffer.getvalue()
    refused(write(tmp_path / "m.pt2", {**good, member: data}), mark)


@pytest.mark.parametrize("folder", ["weights", "constants"])
def test_payload_that_the_configuration_says_to_unpickle_is_refused(good: Members, tmp_path: Path, folder: str) -> None:
    mark = tmp_path / "mark"
    name = f"data/{folder}/model_{folder}_config.json"
    config = json.loads(good[name])
    payload = next(iter(config["config"].values()))
    payload["use_pickle"] = True
    members = {**good, name: json.dumps(config).encode(), f"data/{folder}/{payload['path_name']}": hostile_save(mark)}
    refused(write(tmp_path / "m.pt2", members), mark, "posix.system")


@pytest.mark.parametrize("prefix", ["custom_obj_0", "opaque_obj_0", "../../x", "tensor_0/../custom_obj_0"])
def test_constants_that_are_objects_are_refused(good: Members, tmp_path: Path, prefix: str) -> None:
    mark = tmp_path / "mark"
    name = "data/constants/model_constants_config.json"
    config = json.loads(good[name])
    next(iter(config["config"].values()))["path_name"] = prefix
    members = {**good, name: json.dumps(config).encode(), "data/constants/tensor_7": pickle.dumps(Runs(mark))}
    refused(write(tmp_path / "m.pt2", members), mark, "no plain tensor")


@pytest.mark.parametrize(
    "member",
    ["data/aotinductor/model/x.so", "data/constants/custom_obj_0", "models/other.json", "data.pkl", "constants.pkl"],
)
def test_members_that_are_no_part_of_a_program_are_refused(good: Members, tmp_path: Path, member: str) -> None:
    refused(write(tmp_path / "m.pt2", {**good, member: b"x"}), tmp_path / "mark", member)


Edit = Callable[[dict[str, Any]], None]


def first_expression(model: dict[str, Any], text: str) -> None:
    """Replace the first symbolic expression of the graph."""

    def walk(value: Any) -> bool:
        if isinstance(value, dict):
            if "expr_str" in value:
                value["expr_str"] = text
                return True
            return any(walk(v) for v in value.values())
        return isinstance(value, list) and any(walk(v) for v in value)

    assert walk(model)


def edit_expression(model: dict[str, Any]) -> None:
    first_expression(model, "__import__('os').system('touch MARK')")


def edit_target(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"


def edit_target_dunder(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.load_library"


def edit_target_file(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.save.default"


def edit_target_math(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["nodes"][0]["target"] = "math.__loader__.exec_module"


def edit_node_name(model: dict[str, Any]) -> None:
    model["graph_module"]["graph"]["nodes"][0]["name"] = "x\nimport os; os.system('touch MARK')#"


def edit_input_name(model: dict[str, Any]) -> None:
    name = "x=__import__('os').system('touch MARK')"
    model["graph_module"]["graph"]["inputs"][-1]["as_tensor"]["name"] = name


def edit_argument_name(model: dict[str, Any]) -> None:
    node = next(n for n in model["graph_module"]["graph"]["nodes"] if n["inputs"])
    node["inputs"][0]["name"] = "self=__import__('os').system('touch MARK'), x"


def edit_spec(model: dict[str, Any]) -> None:
    spec = [1, {"type": "collections.defaultdict", "context": json.dumps(["antigravity", []]), "children_spec": []}]
    model["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps(spec)


def edit_spec_key(model: dict[str, Any]) -> None:
    spec = [1, {"type": "builtins.dict", "context": json.dumps(["x=__import__('os')"]), "children_spec": []}]
    model["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps(spec)


def edit_forward_names(model: dict[str, Any]) -> None:
    name = "x=__import__('os').system('touch MARK')"
    model["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = [name]


def edit_range_key(model: dict[str, Any]) -> None:
    model["range_constraints"] = {"__import__('os').system('touch MARK')": {"min_val": 1, "max_val": 2}}


@pytest.mark.parametrize(
    "edit",
    [
        edit_expression, edit_target, edit_target_dunder, edit_target_file, edit_target_math, edit_node_name,
        edit_input_name, edit_argument_name, edit_spec, edit_spec_key, edit_forward_names, edit_range_key,
    ],
)  # fmt: skip
def test_graph_that_would_run_code_is_refused(good: Members, tmp_path: Path, edit: Edit) -> None:
    mark = tmp_path / "mark"
    model = json.loads(good["models/model.json"])
    edit(model)
    text = json.dumps(model).replace("MARK", str(mark))
    refused(write(tmp_path / "m.pt2", {**good, "models/model.json": text.encode()}), mark)


def test_guard_code_in_the_file_is_not_run(good: Members, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    model = json.loads(good["models/model.json"])
    model["guards_code"] = [f"__import__('os').system('touch {mark}') == 0"]
    program = load_file(write(tmp_path / "m.pt2", {**good, "models/model.json": json.dumps(model).encode()}))
    assert program.module is not None
    program.module(torch.randn(2, 3, 8))
    assert not mark.exists()


def test_deeply_nested_json_is_refused(good: Members, tmp_path: Path) -> None:
    deep = b'{"graph_module":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    refused(write(tmp_path / "m.pt2", {**good, "models/model.json": deep}), tmp_path / "mark")


def test_zip_bomb_is_refused(good: Members, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt2"
    write(path, good)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as z:
        z.writestr("m/extra/bomb", bytes(64 << 20))
    refused(path, tmp_path / "mark", "would expand")


@pytest.mark.parametrize("name", ["m/../../etc/x", "/etc/x", "m\\..\\x", "C:/x", "m/extra/../models/model.json"])
def test_member_names_that_leave_the_archive_are_refused(good: Members, tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "m.pt2", good)
    with zipfile.ZipFile(path, "a") as z:
        z.writestr(name, b"x")
    refused(path, tmp_path / "mark", "leaves the archive")


def test_two_members_of_one_name_are_refused(good: Members, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt2", good)
    with zipfile.ZipFile(path, "a") as z, pytest.warns(UserWarning, match="Duplicate name"):
        z.writestr("m/models/model.json", b"{}")
    refused(path, tmp_path / "mark", "two members have one name")


def test_member_that_is_stored_under_another_name_is_refused(good: Members, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt2", good)
    data = path.read_bytes()
    at = data.index(b"m/models/model.json")
    path.write_bytes(data[:at] + b"m/models/modem.json" + data[at + 19 :])
    refused(path, tmp_path / "mark", "called otherwise")


def test_bytes_after_the_directory_are_refused(good: Members, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt2", good)
    path.write_bytes(path.read_bytes() + b"\0" * 40)
    refused(path, tmp_path / "mark")


def test_overlapping_members_are_refused(good: Members, tmp_path: Path) -> None:
    """Two directory entries for one stored member, as quoted-overlap bombs have."""
    path = write(tmp_path / "m.pt2", good)
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack_from("<HLL", data, end + 10)
    first = data[start : start + 46 + struct.unpack_from("<H", data, start + 28)[0]]
    longer = bytearray(first)
    longer[46:47] = b"M"
    directory = data[start : start + size] + longer
    struct.pack_into("<HHLL", data, end + 8, count + 1, count + 1, len(directory), start)
    path.write_bytes(data[:start] + directory + data[end:])
    refused(path, tmp_path / "mark")


@pytest.mark.parametrize(
    "text",
    [
        "s0", "2*s0 + 1", "s0 // 2", "Mod(s0, 8)", "Max(1, Min(s0, 64))", "u0", "-s12",
        "Mul(Integer(4), Symbol('s27', positive=True, integer=True))", "Eq(s0, 4)", "s0**2", "Pow(s0, Integer(2))",
        "FloorDiv(Add(Symbol('s0', integer=True), Integer(-1)), Integer(2))", "Rational(1, 2)",
        "Float('0.5', precision=53)",
    ],
)  # fmt: skip
def test_arithmetic_expressions_pass(text: str) -> None:
    check_expression(text, "file")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "s0.__class__", "().__class__", "exec('x')", "open('x')", "(lambda: 0)()",
        "[s0 for s0 in s1]",
        "Symbol('os')('x')", "Symbol(\"x'); import os\")", "f'{s0}'", "s0 if s1 else s2", "s0[0]", "'s0'.join", "{}",
        "Function('f')", "S('1')", "sympify('1')", "parse_expr('1')", "2**2**2**2**9", "Pow(2, 100000)", "2**99999999",
        "LShift(1, 99999999999)", "Pow(Pow(Pow(2, 64), 64), 64)", "9" * 30, "s0 +", "", "s0\ns1", "s0; s1",
        "a" * 20_000,
        "Mul(s0, evil=open)", "print", "(s0 := 1)", "*s0", "1j", "b'x'",
    ],
)  # fmt: skip
def test_anything_else_in_an_expression_is_refused(text: str) -> None:
    with pytest.raises(ModelFileError):
        check_expression(text, "file")


def test_operations_that_open_files_are_all_known() -> None:
    """Every operation of this PyTorch with a file name among its arguments is on the list."""
    schemas = torch._C._jit_get_all_schemas()
    found = {
        s.name.removeprefix("aten::")
        for s in schemas
        if s.name.startswith(("aten::", "prims::")) and any("file" in a.name for a in s.arguments)
    }
    assert found == FILE_OPERATIONS


def test_globals_are_found_however_the_pickle_names_them() -> None:
    for protocol in range(6):
        found = globals_of(pickle.dumps(os.system, protocol=protocol))
        assert {"posix.system"} == found
    # names that come from the memo, and names that were never strings
    assert globals_of(b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93.") == {"os.system"}
    assert not any(is_plain(n) for n in globals_of(b"\x80\x04N\x8c\x06system\x93."))
    assert not any(is_plain(n) for n in globals_of(b"\x80\x02\x82\x01."))


def test_no_plain_global_can_run_a_users_string() -> None:
    for name in ("builtins.eval", "os.system", "torch.load", "torch.storage._load_from_bytes", "torch._utils._import"):
        assert not is_plain(name)


def test_the_checks_use_no_evaluation_themselves() -> None:
    import emmy.frontend.archive as archive

    tree = ast.parse(Path(archive.__file__).read_text())
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "__import__", "getattr"}
