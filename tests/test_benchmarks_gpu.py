"""The benchmark scripts for a machine with a GPU run at toy sizes on this one.

They end with their table, and report at once what is missing.
"""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu, gpu_check, gpu_models, gpu_rates
from lineage.training.devices import select_device
from tests.helpers import tiny

ROOT = Path(__file__).parent.parent
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def run_script(script: str, *words: str, out: Path) -> tuple[int, list[str], list[str]]:
    """Run a script of the folder, and return its exit code, its output lines and its error lines."""
    completed = subprocess.run(
        [sys.executable, f"benchmarks/{script}.py", *words],
        cwd=ROOT,
        env=os.environ | {"OUT": str(out)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return completed.returncode, completed.stdout.splitlines(), completed.stderr.splitlines()


def test_the_plain_pytorch_cells_compute_the_same_loss() -> None:
    """The compared implementation computes the same, so the ratio is one of speed only."""
    for work in map(gpu_models.toy_size, gpu_models.paper_workloads()[3:5]):
        model = gpu_models.build_model(work, tiny.CPU).eval()
        batch = gpu_models.random_batches(work).get_batch(0)
        objective = work.family.objective
        assert objective is not None
        expected = float(objective(model, batch, None).loss.detach())
        steps = (
            gpu_rates.elmo_loop_forward
            if work.family.name == "elmo"
            else gpu_rates.awd_loop_forward
        )
        for layer in model.body.layers:
            object.__setattr__(layer, "forward", steps(layer))
        assert float(objective(model, batch, None).loss.detach()) == pytest.approx(
            expected, rel=1e-6
        )


def test_flops_match_the_papers_sizes_and_our_own_count() -> None:
    costs = {}
    for work in gpu_models.paper_workloads():
        batch = gpu_models.random_batch(work, np.random.default_rng(0))
        costs[work.name] = gpu_models.estimate_flops_per_token(work, batch) / 1e6
    assert [
        round(costs[name])
        for name in ("BERT-base T 128", "BERT-base T 512", "GPT-1 T 512", "AWD-LSTM batch 64")
    ] == [545, 588, 724, 193]
    assert 559 <= costs["ELMo original"] <= 663
    for work in map(gpu_models.toy_size, gpu_models.paper_workloads()[2:5]):
        batch = gpu_models.random_batches(work).get_batch(0)
        counted = gpu_models.count_flops_per_token(
            gpu_models.build_model(work, tiny.CPU), work, batch
        )
        assert counted == pytest.approx(gpu_models.estimate_flops_per_token(work, batch), rel=0.05)


def test_the_check_against_the_cpu_finds_a_wrong_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight of the second model, which stands for the GPU's, is changed."""
    work = gpu_models.paper_workloads()[4]
    assert all(row["ok"] for row in gpu_check.compare_with_cpu(work, tiny.CPU))
    load = torch.nn.Module.load_state_dict

    def load_with_error(self: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
        bias = state["softmax_bias"]
        load(self, state | {"softmax_bias": bias + torch.linspace(0, 0.1, len(bias))})

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", load_with_error)
    assert not all(row["ok"] for row in gpu_check.compare_with_cpu(work, tiny.CPU))


@pytest.mark.slow
def test_the_benchmark_prints_its_table_and_writes_it(tmp_path: Path) -> None:
    only = "AWD-LSTM batch 64, lineage"
    code, printed, _ = run_script(
        "gpu", "--cpu", "--no-compile", "--measure-seconds", "0.01", "--only", only, out=tmp_path
    )
    assert code == 0
    assert printed[-1].startswith("AWD-LSTM batch 64 toy")
    assert any(line.startswith("training in bf16") for line in printed)
    assert "two runs of one seed end in the same bytes: ulmfit" in printed
    assert any(line.startswith(f"not run: {only}, compiled: --no-compile") for line in printed)
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["kind"] for row in results["rates"]] == ["lineage", "lineage, deterministic"]
    assert results["machine"]["tflops_768"] > 0
    assert min(row["tokens_per_second"] for row in results["rates"]) > 0


@pytest.mark.slow
def test_the_benchmark_runs_every_row_that_a_cpu_can(tmp_path: Path) -> None:
    code, printed, errors = run_script(
        "gpu", "--cpu", "--no-compile", "--measure-seconds", "0.01", out=tmp_path
    )
    assert code == 0 and "end in the same bytes: bert, gpt, elmo, ulmfit" in "\n".join(printed), (
        errors
    )
    known_reasons = (
        "a CUDA graph needs a GPU",
        "--no-compile",
        "no cuDNN here that takes a bf16 LSTM",
        "transformers is not installed here",
    )
    not_run = json.loads((tmp_path / "gpu.json").read_text())["not_run"]
    assert all(row["reason"] in known_reasons for row in not_run)


def test_a_row_stops_at_its_time_limit_and_the_others_run(tmp_path: Path) -> None:
    bench = gpu.GpuBenchmark(tiny.CPU, tmp_path, time.monotonic() + 60, 0.1)
    done: list[str] = []
    bench.run_row("slow", 1.2, lambda: time.sleep(30))
    bench.run_row("wrong", 5, lambda: done[7].lower() and None)
    bench.run_row("right", 5, lambda: done.append("right"))
    bench.deadline = time.monotonic()
    bench.run_row("late", 5, lambda: done.append("late"))
    assert done == ["right"]
    assert json.loads((tmp_path / "gpu.json").read_text())["not_run"] == [
        {"row": "slow", "reason": "not done within 1 s"},
        {"row": "wrong", "reason": "IndexError: list index out of range"},
        {"row": "late", "reason": "no time left"},
    ]


@NO_GPU
def test_without_a_gpu_the_script_prints_one_error_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [gpu.__name__])
    assert gpu.main() == 2
    output, errors = capsys.readouterr()
    assert not output
    assert len(errors.splitlines()) == 1
    assert "no GPU is here" in errors
    assert "--cpu" in errors


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="two runs on a GPU can only be compared where one is"
)
@pytest.mark.parametrize("number", [0, 2, 3, 4])
def test_two_runs_on_a_gpu_give_the_same_bytes(number: int) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        for row in gpu_check.check_reproducibility(
            gpu_models.paper_workloads()[number], select_device("cuda")
        ):
            assert row["ok"] and row["told_apart"], row
    finally:
        torch.use_deterministic_algorithms(before)


def test_the_scripts_import_only_packages_of_a_training_machine() -> None:
    """Other dependencies than torch, numpy, pandas and the like may be missing there."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    # torch itself looks for psutil.
    available = {"torch", "numpy", "pandas", "pyarrow", "safetensors", "tokenizers", "psutil"}
    import_names = {"scikit-learn": "sklearn", "ruamel.yaml": "ruamel"}
    packages = [re.split(r"[^\w.-]", line)[0] for line in metadata]
    names = [import_names.get(package, package) for package in packages if package not in available]
    code = f"import sys; sys.modules.update(dict.fromkeys({names}))\nfrom benchmarks import gpu\n"
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr.splitlines()[-1]
