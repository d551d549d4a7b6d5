import subprocess
import sys

from tests.cli.conftest import Emmy


def test_help_names_every_command(emmy: Emmy) -> None:
    shown = emmy("--help")
    assert shown.code == 0
    assert all(f"  {name}" in shown.out for name in ("saturate", "compile", "run", "doctor", "ops"))


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
