import errno
import logging
import subprocess
import sys

import pytest

from emmy.errors import UsageError
from tests.cli.conftest import Emmy


def test_help_names_every_command(emmy: Emmy) -> None:
    shown = emmy("--help")
    assert shown.code == 0
    assert all(f"  {name}" in shown.out for name in ("saturate", "compile", "run", "simulate", "doctor", "ops"))


def test_starting_up_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'egglog', 'numpy', 'transformers', 'duckdb', 'highspy', 'rich', 'sklearn', 'pyarrow'}"
    code = f"import sys, emmy, emmy.cli.main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_option_is_wrong_usage(emmy: Emmy) -> None:
    refused = emmy("compile", "--no-such-option")
    assert refused.code == 2 and refused.out == "" and "--no-such-option" in refused.err


def test_no_model_is_wrong_usage(emmy: Emmy) -> None:
    refused = emmy("compile")
    assert refused.code == 2 and "name one model" in refused.err


def test_an_unknown_target_lists_those_there_are(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", "torch.neg(torch.randn(8))", "--target", "sm_70")
    assert refused.code == 2 and "sm_120a" in refused.err and refused.out == ""


def test_a_card_and_another_cards_target_contradict_each_other(emmy: Emmy) -> None:
    refused = emmy("compile", "-c", "torch.neg(torch.randn(8))", "--target", "sm_80", "--gpu", "RTX 4090")
    assert refused.code == 2 and "sm_89" in refused.err


def test_ctrl_c_ends_with_130(emmy: Emmy, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("emmy.frontend.source.load", interrupted)
    stopped = emmy("compile", "-c", "torch.neg(torch.randn(8))")
    assert stopped.code == 130 and stopped.out == "" and "Traceback" not in stopped.err


def test_a_file_that_is_no_model_is_a_failure_not_wrong_usage(emmy: Emmy, tmp_path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"nothing")
    refused = emmy("compile", "m.pt2")
    assert refused.code == 1 and "m.pt2" in refused.err


def test_a_full_disk_is_a_failure(emmy: Emmy, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("emmy.frontend.source.load", full)
    failed = emmy("compile", "-c", "torch.neg(torch.randn(8))")
    assert failed.code == 1 and "No space left" in failed.err and "Traceback" not in failed.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-launches", "0"),
        ("--max-launches", "-5"),
        ("--max-seconds", "0"),
        ("--max-seconds", "nan"),
        ("--max-megabytes", "-1"),
        ("--seq-len", "0"),
        ("--batch", "-1"),
        ("--cache-len", "0"),
        ("--layer", "-1"),
        ("--repeats", "0"),
    ],
)
def test_a_number_that_must_be_above_zero_is_wrong_usage(emmy: Emmy, option: str, value: str) -> None:
    command = "run" if option == "--repeats" else "compile"
    refused = emmy(command, "openai-community/gpt2", "--no-check", option, value)
    assert refused.code == 2 and option in refused.err and refused.out == ""


def test_an_empty_name_is_wrong_usage(emmy: Emmy) -> None:
    refused = emmy("compile", "")
    assert refused.code == 2 and refused.err.startswith("emmy: the name of the model is empty")


def test_a_misspelt_model_is_told_with_the_nearest_name(emmy: Emmy) -> None:
    refused = emmy("compile", "Qwen/Qwen3-0.6b")
    assert refused.code == 2 and "did you mean Qwen/Qwen3-0.6B?" in refused.err


def test_what_emmy_logs_is_told_like_a_note_and_once(emmy: Emmy, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(*_: object, **__: object) -> None:
        logging.getLogger("emmy.runtime.cache").warning("the cache is %s", "full")
        raise UsageError("enough")

    monkeypatch.setattr("emmy.frontend.source.load", warns)
    for _ in range(2):
        assert emmy("compile", "m.pt2").err == "emmy: the cache is full\nemmy: enough\n"


def test_a_full_disk_says_what_to_do(emmy: Emmy, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("emmy.frontend.source.load", full)
    stopped = emmy("compile", "-c", "torch.neg(torch.randn(8))")
    assert stopped.code == 1 and "TMPDIR" in stopped.err and "Traceback" not in stopped.err
