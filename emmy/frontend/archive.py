"""What a `.pt2` archive must be before PyTorch may see it.

`torch.export.load` unpickles payloads, evaluates shape expressions with sympy, resolves operators by attribute access,
imports modules that a tree specification names, and generates Python source from names in the graph.  So every one of
these is checked first, by a rule of the form "this, and nothing else":

* the zip is laid out in the one way that all zip readers agree on, with known members and a bounded size;
* a pickled payload can only build plain tensors;
* operators are PyTorch's own, without those that touch files;
* an expression is arithmetic over symbols;
* every other string of the graph is a plain name.
"""

from __future__ import annotations

import ast
import io
import json
import re
import struct
import zipfile
import zlib
from typing import IO, Any, Final

from emmy.errors import ModelFileError
from emmy.frontend.pickles import check_plain

MEMBERS: Final = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|\.format_version|"
    r"\.storage_alignment|models/model\.json|"
    r"data/weights/(weight_\d+|model\.pt|model_weights_config\.json)|"
    r"data/constants/(tensor_\d+|model\.pt|model_constants_config\.json)|"
    r"data/sample_inputs/model\.pt|extra/[\w.\-]+"
)
# A compressed archive may grow to this many times its size; PyTorch itself never compresses.
_GROWTH: Final = 20
_JSON_LIMIT: Final = 1 << 30
_END: Final = struct.Struct("<4s4H2LH")
_FUNCTIONS: Final = frozenset(
    {
        "Add", "Mul", "Pow", "Max", "Min", "Abs", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv",
        "ModularIndexing", "Where", "Integer", "Rational", "Float", "CeilToInt", "FloorToInt", "TruncToInt",
        "RoundToInt", "RoundDecimal", "TruncToFloat", "ToFloat", "IntTrueDiv", "FloatTrueDiv", "FloatPow",
        "PowByNatural", "LShift", "RShift", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or", "BitwiseFn_bitwise_xor",
        "Identity", "Eq", "Ne", "Ge", "Le", "Gt", "Lt", "Equality", "Unequality", "GreaterThan", "LessThan",
        "StrictGreaterThan", "StrictLessThan", "And", "Or", "Not", "Piecewise", "ExprCondPair", "floor", "ceiling",
        "sqrt", "IsNonOverlappingAndDenseIndicator",
    }
)  # fmt: skip
_WORDS: Final = _FUNCTIONS | {"Symbol", "true", "false", "oo", "int_oo", "True", "False", "pi", "E"}
_GROWING: Final = frozenset(("Pow", "FloatPow", "PowByNatural", "LShift", "RShift"))
_SYMBOL: Final = re.compile(r"[a-z]{1,4}\d{1,9}")
_NAME: Final = re.compile(r"[\w.\-+/:@ ]*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_TARGET: Final = re.compile(r"torch\.ops\.(aten|prims|higher_order)\.(\w+)(\.\w+)?")
_HIGHER: Final = frozenset(
    ("wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph", "cond", "while_loop", "wrap",
     "hints_wrapper", "tag_activation_checkpoint", "wrap_activation_checkpoint", "map_impl", "scan",
     "associative_scan")
)  # fmt: skip
# Operations of PyTorch that open files.
FILE_OPERATIONS: Final = frozenset(("save", "from_file"))
_PYTHON: Final = re.compile(
    r"_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|abs|lt|le|gt|ge|eq|ne|and_|or_|not_|getitem)|"
    r"math\.(trunc|floor|ceil|sqrt|floordiv)|torch\.sym_(int|float|max|min|not|ite|sqrt|sum)|"
    r"torch\._sym_(sqrt|log2)"
)
# Text that PyTorch keeps as text: traces, comments, version strings.
_FREE_TEXT: Final = frozenset(
    ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "from_node", "custom", "guards_code",
     "torch_version", "as_string", "as_strings")
)  # fmt: skip
_SPEC_TYPES: Final = frozenset(
    ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict",
     "torch.fx.immutable_collections.immutable_list", "torch.fx.immutable_collections.immutable_dict")
)  # fmt: skip


def open_strict(file: IO[bytes], what: str) -> zipfile.ZipFile:
    """The zip, if every reader sees the same members in it and they expand to a bounded size; else ModelFileError."""
    try:
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error) as e:
        raise ModelFileError(f"{what} is a damaged or truncated archive: {e}", "save or download it again") from e
    size = file.seek(0, 2)
    _check_layout(file, infos, size, what)
    total = sum(i.file_size for i in infos)
    if total > _GROWTH * size + (1 << 20):
        raise ModelFileError(f"{what} is {size} bytes and would expand to {total}", "it is no model; do not open it")
    return archive


def _check_layout(file: IO[bytes], infos: list[zipfile.ZipInfo], size: int, what: str) -> None:
    def bad(why: str) -> ModelFileError:
        return ModelFileError(f"{what} is an irregular archive: {why}", "save the model again with PyTorch")

    file.seek(max(0, size - _END.size))
    tail = file.read(_END.size)
    if len(tail) < _END.size or not tail.startswith(b"PK\x05\x06") or tail[-2:] != b"\0\0":
        raise bad("something follows its directory")
    names = [i.filename for i in infos]
    if len({n.casefold() for n in names}) != len(names):
        raise bad("two members have one name")
    end = 0
    for info in sorted(infos, key=lambda i: i.header_offset):
        name = info.filename
        if name.startswith(("/", "\\")) or "\\" in name or ":" in name or ".." in name.split("/") or "\0" in name:
            raise bad(f"the member name {name!r} leaves the archive")
        if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise bad(f"{name} is encrypted or packed in an unusual way")
        if info.header_offset < end:
            raise bad(f"{name} overlaps another member")
        file.seek(info.header_offset)
        header = file.read(30)
        length = int.from_bytes(header[26:28], "little")
        if header[:4] != b"PK\x03\x04" or file.read(length) != name.encode():
            raise bad(f"{name} is called otherwise where it is stored")
        end = info.header_offset + 30 + length + info.compress_size


def read_member(archive: zipfile.ZipFile, name: str, what: str) -> bytes:
    """The bytes of a member; ModelFileError where they are missing or damaged."""
    try:
        return archive.read(name)
    except KeyError as e:
        raise ModelFileError(f"{what} lacks {name}", "save it with torch.export.save") from e
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as e:
        raise ModelFileError(f"{what}: {name} is damaged: {e}", "save or download it again") from e


def check_saved_tensors(data: bytes, what: str) -> None:
    """ModelFileError unless `data` is what `torch.save` writes for plain tensors: a zip with one plain pickle."""
    with open_strict(io.BytesIO(data), what) as archive:
        names = archive.namelist()
        pickles = [n for n in names if n.endswith("/data.pkl")]
        if len(pickles) != 1 or not all(_saved_member(n) for n in names):
            raise ModelFileError(f"{what} is not what torch.save writes for tensors", "save the model again")
        check_plain(read_member(archive, pickles[0], what), what)


def _saved_member(name: str) -> bool:
    inner = name.partition("/")[2]
    return bool(
        re.fullmatch(
            r"data\.pkl|data/\d+|byteorder|version|\.data/serialization_id|\.format_version|\.storage_alignment", inner
        )
    )


def check_archive(archive: zipfile.ZipFile, what: str) -> None:
    """ModelFileError unless the archive is one that `torch.export.load` can be trusted with."""
    roots = {n.split("/")[0] for n in archive.namelist()}
    if len(roots) != 1:
        raise ModelFileError(f"{what} has several top folders: {sorted(roots)[:3]}", "save it with torch.export.save")
    root = f"{roots.pop()}/"
    for name in archive.namelist():
        if not MEMBERS.fullmatch(name.removeprefix(root)):
            raise ModelFileError(
                f"{what} has the member {name}, which is no part of an exported program",
                "compiled code, custom objects and several models in one file are not read",
            )
    for name in archive.namelist():
        if name.endswith(".pt"):
            check_saved_tensors(read_member(archive, name, what), f"{what} ({name})")
        elif name.endswith("_config.json"):
            _check_payload_config(_json(archive, name, what), archive, name, root, what)
    _Graph(what).check(_json(archive, f"{root}models/model.json", what))


def _json(archive: zipfile.ZipFile, name: str, what: str) -> Any:
    if name in archive.NameToInfo and archive.getinfo(name).file_size > _JSON_LIMIT:
        raise ModelFileError(f"{what}: {name} is larger than {_JSON_LIMIT} bytes", "it is no model")
    data = read_member(archive, name, what)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ModelFileError(f"{what}: {name} is damaged: {e}", "save or download it again") from e


def _check_payload_config(config: Any, archive: zipfile.ZipFile, name: str, root: str, what: str) -> None:
    """Each payload is a member of the same folder; one that would be unpickled holds plain tensors."""
    table = config.get("config") if isinstance(config, dict) else None
    if not isinstance(table, dict):
        raise ModelFileError(f"{what}: {name} is no table of payloads", "save the model again")
    folder = name.rpartition("/")[0]
    for target, payload in table.items():
        path = payload.get("path_name") if isinstance(payload, dict) else None
        if not isinstance(path, str) or not re.fullmatch(r"(weight|tensor)_\d+", path):
            raise ModelFileError(f"{what}: the value of {target!r} is {path!r}, no plain tensor", "use plain tensors")
        member = f"{folder}/{path}"
        if member not in archive.NameToInfo:
            raise ModelFileError(f"{what} lacks {member.removeprefix(root)}", "save or download it again")
        if payload.get("use_pickle") is not False:
            check_saved_tensors(read_member(archive, member, what), f"{what} ({target})")


class _Graph:
    """The walk over the JSON of the graph: every string is checked by what its key says it is."""

    def __init__(self, what: str) -> None:
        self.what = what

    def fail(self, why: str) -> ModelFileError:
        return ModelFileError(f"{self.what}: {why}", "do not open it unless you trust who made it")

    def check(self, value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            for k, v in value.items():
                if not _NAME.fullmatch(k):
                    raise self.fail(f"the key {k[:60]!r} is no name")
                self.check(v, k)
        elif isinstance(value, list):
            for v in value:
                self.check(v, key)
        elif isinstance(value, str) and key not in _FREE_TEXT:
            self._string(value, key)

    def _string(self, text: str, key: str) -> None:
        if key == "expr_str":
            check_expression(text, self.what)
        elif key in ("target", "as_operator"):
            self._target(text)
        elif key in ("in_spec", "out_spec"):
            self._spec(text)
        elif key in ("name", "as_name", "forward_arg_names"):
            # these become identifiers of generated source
            if text and not _IDENTIFIER.fullmatch(text):
                raise self.fail(f"{text[:60]!r} is no identifier")
        elif not _NAME.fullmatch(text):
            raise self.fail(f"{key or 'a string'} is {text[:60]!r}, no plain name")

    def _target(self, text: str) -> None:
        if _PYTHON.fullmatch(text):
            return
        match = _TARGET.fullmatch(text)
        if match is None:
            raise self.fail(f"the operation {text[:80]!r} is not one of PyTorch's")
        space, name, _ = match.groups()
        if name in FILE_OPERATIONS or (space == "higher_order" and name not in _HIGHER):
            raise self.fail(f"the operation {text[:80]!r} is not read from files")

    def _spec(self, text: str) -> None:
        if not text:
            return
        try:
            self._spec_node(json.loads(text))
        except (ValueError, RecursionError) as e:
            raise self.fail(f"a tree specification is damaged: {e}") from e

    def _spec_node(self, node: Any) -> None:
        if isinstance(node, list):
            for n in node:
                self._spec_node(n)
            return
        if not isinstance(node, dict):
            return
        kind, context = node.get("type"), node.get("context")
        if kind is not None and kind not in _SPEC_TYPES:
            raise self.fail(f"inputs or results of type {str(kind)[:80]!r}: only tuples, lists and dicts are read")
        keys = json.loads(context) if isinstance(context, str) and context else None
        for k in keys if isinstance(keys, list) else ():
            if not isinstance(k, int) and not (isinstance(k, str) and re.fullmatch(r"[\w.\- ]*", k)):
                raise self.fail(f"the dictionary key {str(k)[:60]!r} is no name")
        self._spec_node(node.get("children_spec", []))


def check_expression(text: str, what: str) -> None:
    """ModelFileError unless `text` is arithmetic over symbols, as sympy prints it (infix, or constructor calls)."""

    def fail(why: str) -> ModelFileError:
        return ModelFileError(f"{what}: the size expression {text[:80]!r} {why}", "do not open it")

    if len(text) > 10_000:
        raise fail("is too long")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise fail("cannot be parsed") from e
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _check_call(node, fail)
        elif isinstance(node, ast.Name):
            if not _SYMBOL.fullmatch(node.id) and node.id not in _WORDS:
                raise fail(f"names {node.id}")
        elif isinstance(node, ast.Constant):
            small = not isinstance(node.value, int) or abs(node.value) < 1 << 64
            symbol = isinstance(node.value, str) and bool(_SYMBOL.fullmatch(node.value) or _is_decimal(node.value))
            if not (isinstance(node.value, int | float) and small) and not symbol:
                raise fail("holds a value that is no number")
        elif isinstance(node, ast.BinOp):
            if not isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Mod | ast.Div | ast.Pow):
                raise fail("is not arithmetic")
            if isinstance(node.op, ast.Pow):
                _check_growth(node.left, node.right, fail)
        elif not isinstance(
            node,
            ast.Expression
            | ast.UnaryOp
            | ast.USub
            | ast.UAdd
            | ast.operator
            | ast.Load
            | ast.keyword
            | ast.Compare
            | ast.cmpop,
        ):
            raise fail("is not arithmetic")


def _is_decimal(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d{1,3})?", text))


def _check_call(node: ast.Call, fail: Any) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name == "Symbol":
        symbol = node.args[0] if len(node.args) == 1 else None
        if not (isinstance(symbol, ast.Constant) and isinstance(symbol.value, str)) or not _SYMBOL.fullmatch(
            symbol.value
        ):
            raise fail("has a strange symbol")
    elif name not in _FUNCTIONS:
        raise fail(f"calls {name or 'something without a name'}")
    for k in node.keywords:
        if k.arg not in ("positive", "integer", "nonnegative", "real", "precision", "evaluate"):
            raise fail(f"sets {k.arg}")
    if name in _GROWING and len(node.args) == 2:
        _check_growth(node.args[0], node.args[1], fail)


def _check_growth(base: ast.expr, exponent: ast.expr, fail: Any) -> None:
    """A power's exponent is a small literal and its base holds no further power, so that evaluating it stays small."""
    inner = exponent.args[0] if isinstance(exponent, ast.Call) and len(exponent.args) == 1 else exponent
    inner = inner.operand if isinstance(inner, ast.UnaryOp) else inner
    if not (isinstance(inner, ast.Constant) and isinstance(inner.value, int) and abs(inner.value) <= 64):
        raise fail("has a power that is no small number")
    for n in ast.walk(base):
        called = n.func.id if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) else ""
        if called in _GROWING or (isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow)):
            raise fail("has a power of a power")
