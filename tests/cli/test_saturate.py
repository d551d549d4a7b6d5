import gzip
import hashlib
import json
from pathlib import Path

import pytest

from emmy.inspect.artifacts import read_plan, rules_digest
from emmy.inspect.views import report_digest
from tests.cli.conftest import Emmy

pytestmark = pytest.mark.nvrtc
NORM = "nn.RMSNorm(64)(torch.randn(4, 64))"


def test_a_folder_of_artifacts_is_written(emmy: Emmy, tmp_path: Path) -> None:
    done = emmy("saturate", "-c", NORM, "--target", "sm_89")
    folder = tmp_path / "emmy-out" / "code-sm_89"
    assert done.code == 0
    assert sorted(p.name for p in folder.iterdir()) == ["egraph.json.gz", "kernels", "plan.json", "report.txt"]
    plan = read_plan(folder)
    kernels = {n.name: n.source for n in plan.launches}
    assert kernels.keys() == {"k_rms_norm"}
    assert {p.stem: p.read_text() for p in (folder / "kernels").iterdir()} == kernels


def test_the_summary_fits_a_terminal_and_names_what_was_chosen(emmy: Emmy) -> None:
    done = emmy("saturate", "-c", NORM, "--target", "sm_89")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "code for sm_89 (RTX 4090)"
    (kernel,) = [line.split() for line in lines if line.startswith("k_rms_norm")]
    assert kernel[1] == "1" and float(kernel[3]) > 0 and kernel[4] == "predicted"
    for word in ("alternatives", "model e-graph", "loop e-graph", "extraction", "seconds", "registers"):
        assert word in done.out
    assert "wrote" in done.err and "wrote" not in done.out


def test_json_says_the_same_as_the_plan(emmy: Emmy, tmp_path: Path) -> None:
    done = emmy("saturate", "-c", NORM, "--target", "sm_120", "--json", "-o", "here")
    summary = json.loads(done.out)
    (launch,) = read_plan(tmp_path / "here").launches
    (kernel,) = summary["kernels"]
    assert (kernel["name"], kernel["row"], kernel["family"], kernel["body"]) == (
        launch.name, launch.row, launch.family, launch.body,
    )  # fmt: skip
    assert summary["target"] == "sm_120a" and kernel["registers"] > 0
    assert kernel["predicted_us"] == pytest.approx(summary["predicted_us"])
    assert summary["alternatives"]["rows"] >= kernel["alternatives"] > 1
    assert min(summary["egraph"].values()) > 0
    assert {"load", "model", "choice", "plan"} <= summary["seconds"].keys()


def test_the_plan_names_its_report_rules_and_options(emmy: Emmy, tmp_path: Path) -> None:
    emmy("saturate", "-c", NORM, "--target", "sm_89", "--hold", "fuse", "-o", "here")
    document = json.loads((tmp_path / "here/plan.json").read_text())
    report = (tmp_path / "here/report.txt").read_text().splitlines()
    assert document["report_sha256"] == report_digest(report)
    assert document["report_sha256"] == hashlib.sha256((tmp_path / "here/report.txt").read_bytes()).hexdigest()
    assert document["rules_sha256"] == rules_digest()
    assert document["options"]["held"] == ["fuse"] and document["target"] == {"arch": "sm_89", "gpu": "RTX 4090"}
    assert document["regime"]["gpu"] == "RTX 4090" and document["regime"]["compiler"].startswith("nvrtc-")
    assert any(": held" in line for line in report)


def test_the_graph_file_holds_the_alternatives_and_marks_the_chosen_ones(emmy: Emmy, tmp_path: Path) -> None:
    emmy("saturate", "-c", NORM, "--target", "sm_89", "-o", "here")
    graph = json.loads(gzip.decompress((tmp_path / "here/egraph.json.gz").read_bytes()))
    classes = {c["id"]: c for c in graph["classes"]}
    chosen = [l for l in graph["launches"] if l["chosen"]]
    (plan,) = read_plan(tmp_path / "here").launches
    assert len(graph["launches"]) > 3 and len(chosen) == 1
    assert [classes[t]["name"] for t in chosen[0]["results"]] == list(plan.results)
    assert {l["body"] for l in graph["launches"]} <= graph["bodies"].keys()
    assert {x for r in graph["rows"] for x in (*r["operands"], r["result"])} <= classes.keys()
    assert "decompose-rms-norm" in {r["rule"] for r in graph["rows"]}
    assert {l["rule"] for l in graph["launches"]} >= {"grow", "fuse", "lift-bin"}
    assert [plan.family, plan.row] in graph["schedules"][plan.body]["rows"]


def test_equal_runs_write_equal_files(emmy: Emmy, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        emmy("saturate", "-c", NORM, "--target", "sm_89", "-o", folder)
    for name in ("plan.json", "report.txt", "egraph.json.gz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_a_folder_used_again_holds_the_new_kernels_and_what_others_put_there(emmy: Emmy, tmp_path: Path) -> None:
    emmy("saturate", "-c", NORM, "--target", "sm_89", "-o", "here")
    (tmp_path / "here/kernels/mine.cu").write_text("// mine\n")
    emmy("saturate", "-c", "torch.neg(torch.randn(8))", "--target", "sm_89", "-o", "here")
    assert sorted(p.name for p in (tmp_path / "here/kernels").iterdir()) == ["k_neg_pointwise.cu", "mine.cu"]


def test_a_folder_that_cannot_be_made_is_a_failure(emmy: Emmy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failed = emmy("saturate", "-c", NORM, "-o", "file/out")
    assert failed.code == 1 and "file/out" in failed.err and "--out" in failed.err


def test_an_operation_that_pytorch_runs_is_named_and_refused_on_request(emmy: Emmy) -> None:
    code = "torch.linalg.inv(torch.randn(4, 4)) + 1"
    done = emmy("saturate", "-c", code, "--target", "sm_89")
    assert done.code == 0 and "linalg" in done.out and "PyTorch" in done.out
    refused = emmy("saturate", "-c", code, "--target", "sm_89", "--no-fallback")
    assert refused.code == 1 and "linalg" in refused.err


def test_evidence_that_must_be_measured_names_the_kernel_that_was_not(emmy: Emmy) -> None:
    refused = emmy("saturate", "-c", NORM, "--target", "sm_89", "--strict-evidence")
    assert refused.code == 1 and "k_rms_norm" in refused.err
