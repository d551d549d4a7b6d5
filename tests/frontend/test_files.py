"""Model files: what loads, and what every other file is told to be."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from emmy.errors import ModelFileError, UnsupportedError, UsageError
from emmy.frontend import interpret
from emmy.frontend.files import example_tensors, load_file


class Small(nn.Module):
    """At module level, so that it can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("offset", torch.ones(4), persistent=False)
        self.scale = torch.full((4,), 2.0)

    def forward(self, x: torch.Tensor, factor: float = 3.0) -> dict[str, torch.Tensor]:
        y = self.linear(x) * self.scale + self.offset + torch.tensor([1.0, 2.0, 3.0, 4.0]) * factor
        return {"y": y, "last": y[:, -1]}


def exported(path: Path, dynamic: bool = True) -> Path:
    shapes = ({1: torch.export.Dim("seq", min=1, max=64)},) if dynamic else None
    program = torch.export.export(Small(), (torch.randn(2, 16, 8),), dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path)
    return path


@pytest.mark.parametrize("name", ["model.pt2", "model.pt"])
def test_exported_program_loads_and_computes_what_it_did(tmp_path: Path, name: str) -> None:
    program = load_file(exported(tmp_path / name))
    assert program.name == "model"
    assert {i.kind for i in program.graph.inputs} == {"user", "parameter", "buffer", "constant"}
    assert program.graph.sizes[0].low == 1
    assert program.module is not None
    for length in (1, 5, 64):
        x = torch.randn(2, length, 8)
        results = program.unflatten(interpret(program.graph, program.weights, program.flatten((x,))))
        expected = program.module(x)
        assert torch.equal(results["y"], expected["y"])
        assert torch.equal(results["last"], expected["last"])


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(y)


def test_regions_that_set_a_mode_load(tmp_path: Path) -> None:
    module, x = Regions(), torch.randn(2, 8)
    torch.export.save(torch.export.export(module, (x,), strict=False), tmp_path / "regions.pt2")
    program = load_file(tmp_path / "regions.pt2")
    assert torch.equal(interpret(program.graph, program.weights, [x])[0], module(x))


def test_control_flow_in_a_file_is_unsupported(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))

    torch.export.save(torch.export.export(Branch(), (torch.randn(2),), strict=False), tmp_path / "branch.pt2")
    with pytest.raises(UnsupportedError, match="the control-flow operation cond"):
        load_file(tmp_path / "branch.pt2")


def test_saved_example_inputs_are_the_example(tmp_path: Path) -> None:
    (x,) = load_file(exported(tmp_path / "m.pt2")).example_tensors()
    assert x.shape == (2, 16, 8)


def test_trusted_pickled_module_loads_in_eval_mode(tmp_path: Path) -> None:
    path = tmp_path / "module.pt"
    torch.save(nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)), path)
    program = load_file(path, trust_pickle=True, inputs="f32[2,8]")
    assert "aten.linear.default" in [n.op for n in program.graph.nodes]
    x = torch.randn(2, 8)
    assert program.module is not None
    assert torch.equal(interpret(program.graph, program.weights, [x])[0], program.module(x))
    assert "training mode" in program.notes[0]


def save_state(path: Path) -> None:
    torch.save(nn.Linear(3, 3).state_dict(), path)


def save_legacy_state(path: Path) -> None:
    torch.save(nn.Linear(3, 3).state_dict(), path, _use_new_zipfile_serialization=False)


def save_module(path: Path) -> None:
    torch.save(nn.Linear(3, 3), path)


def save_legacy_module(path: Path) -> None:
    torch.save(nn.Linear(3, 3), path, _use_new_zipfile_serialization=False)


def save_torchscript(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        for name in ("data.pkl", "constants.pkl", "code/__torch__.py", "version"):
            z.writestr(f"m/{name}", pickle.dumps(None))


def save_other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("a/b.txt", "text")


def save_old_export(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("serialized_exported_program.json", "{}")


def save_safetensors(path: Path) -> None:
    path.write_bytes((2).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize(
    ("write", "says", "do"),
    [
        (save_state, "state dict", "build the model"),
        (save_legacy_state, "state dict", "build the model"),
        (save_module, "pickled object; to open it is to run it", "--trust-pickle"),
        (save_legacy_module, "pickled object; to open it is to run it", "--trust-pickle"),
        (save_torchscript, "TorchScript archive", "torch.export.save"),
        (save_other_zip, "a zip archive, but no PyTorch model", "torch.export.save"),
        (save_old_export, "exported by an old PyTorch", "torch.export.save"),
        (save_safetensors, "safetensors", "folder"),
        (lambda p: p.write_bytes(b""), "is empty", "save or download"),
        (lambda p: p.write_bytes(b"GGUF\0\0\0\0\0\0\0\0\0\0"), "GGUF", "torch.export.save"),
        (lambda p: p.write_bytes(bytes(range(7, 207))), "no PyTorch model file", "torch.export.save"),
        (lambda p: p.write_bytes(b"\x80\x02" + bytes(range(100, 200))), "damaged pickle", "save or download"),
        (lambda p: p.write_bytes(b"PK\x03\x04" + bytes(100)), "damaged or truncated", "save or download"),
        (lambda p: p.mkdir(), "is a folder", "config.json"),
        (lambda p: None, "there is no file", "check the path"),
    ],
)
def test_every_other_file_is_told_what_it_is_and_what_to_do(tmp_path: Path, write: object, says: str, do: str) -> None:
    path = tmp_path / "model.pt"
    write(path)  # type: ignore[operator]
    with pytest.raises(ModelFileError) as e:
        load_file(path)
    assert says in e.value.what
    assert do in e.value.do


def test_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    data = exported(tmp_path / "whole.pt2").read_bytes()
    path = tmp_path / "cut.pt2"
    for part in (1, 3, 30, 200, len(data) // 3, len(data) // 2, len(data) - 400, len(data) - 22, len(data) - 1):
        path.write_bytes(data[:part])
        with pytest.raises(ModelFileError):
            load_file(path)


def test_flipped_bytes_never_load_something_else(tmp_path: Path) -> None:
    """A damaged file is refused, or the damage lay in padding or weights and the graph is the same."""
    data = bytearray(exported(tmp_path / "whole.pt2", dynamic=False).read_bytes())
    want = [n.op for n in load_file(tmp_path / "whole.pt2").graph.nodes]
    path = tmp_path / "flipped.pt2"
    for at in range(40, len(data), len(data) // 25):
        changed = bytearray(data)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        try:
            program = load_file(path)
        except ModelFileError:
            continue
        assert [n.op for n in program.graph.nodes] == want


@pytest.mark.parametrize(
    ("inputs", "says"),
    [(None, "--inputs"), ("f32", "character 4"), ("f99[1]", "f99"), ("f32[1,2] x", "character 10")],
)
def test_inputs_of_a_pickled_module_must_be_spelled(tmp_path: Path, inputs: str | None, says: str) -> None:
    path = tmp_path / "module.pt"
    save_module(path)
    with pytest.raises(UsageError) as e:
        load_file(path, trust_pickle=True, inputs=inputs)
    assert says in str(e.value)


def test_trusted_pickle_that_is_no_module_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save(Path("x"), path)
    with pytest.raises(ModelFileError, match="holds a "):
        load_file(path, trust_pickle=True, inputs="f32[1]")


def test_inputs_for_an_exported_program_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has its own"):
        load_file(exported(tmp_path / "m.pt2"), inputs="f32[1]")


def test_example_tensors_have_the_types_that_were_spelled() -> None:
    found = example_tensors("f32[1,32], i64[4], bf16[], bool[2]")
    assert [(str(t.dtype), list(t.shape)) for t in found] == [
        ("torch.float32", [1, 32]), ("torch.int64", [4]), ("torch.bfloat16", []), ("torch.bool", [2]),
    ]  # fmt: skip
    again = example_tensors("f32[1,32], i64[4], bf16[], bool[2]")
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize(
    ("spec", "at", "expected"),
    [
        ("", 1, "an element type"),
        ("f32", 4, "the extents in brackets"),
        ("f32[1,x]", 7, "a number or ]"),
        ("f31[2]", 1, "an element type (f32,"),
        ("f32[1,2] i64[3]", 10, "a comma or the end"),
        ("f32[1,2],i64[3", 15, "a comma or ]"),
        ("f32[1,2],", 10, "an element type"),
        ("f32[-1]", 5, "a number or ]"),
    ],
)
def test_misspelt_example_tensors_are_shown_with_the_place_and_the_right_form(
    spec: str, at: int, expected: str
) -> None:
    with pytest.raises(UsageError) as e:
        example_tensors(spec)
    said, text, mark, form = str(e.value).split("\n")
    assert said.startswith(f"--inputs: expected {expected}") and said.endswith(f"at character {at}")
    assert text == f"  {spec}" and mark.index("^") == at + 1
    assert form.endswith("f32[1,32],i64[4]")


def test_file_object_is_not_needed_after_loading(tmp_path: Path) -> None:
    path = exported(tmp_path / "m.pt2")
    program = load_file(path)
    path.write_bytes(b"gone")
    x = torch.randn(2, 3, 8)
    assert torch.isfinite(interpret(program.graph, program.weights, [x])[0]).all()
