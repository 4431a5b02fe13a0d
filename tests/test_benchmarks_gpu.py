"""The benchmark scripts for a machine with a GPU run at toy sizes on this one.

They end with their table, continue after a kill, and report at once what is missing.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import gpu, gpu_check, gpu_models, gpu_pretrain, gpu_rates, gpu_shards
from lineage.artifacts import file_digest
from lineage.errors import InputError
from lineage.tokenizers.token_ids import TokenizedCorpus, encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.devices import select_device
from tests.helpers import tiny

ROOT = Path(__file__).parent.parent
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def start_script(script: str, *words: str, out: Path) -> "subprocess.Popen[str]":
    """Start a script of the folder as its user does."""
    command = [sys.executable, f"benchmarks/{script}.py", *words]
    environment = os.environ | {"OUT": str(out)}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(script: str, *words: str, out: Path) -> tuple[int, list[str], list[str]]:
    """Run a script and return its exit code, its output lines and its error lines."""
    process = start_script(script, *words, out=out)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output.splitlines(), errors.splitlines()


def write_shards(folder: Path) -> None:
    """Write shards of the synthetic language next to their corpus.

    Their settings take seconds instead of minutes.
    """
    source = folder / "corpus"
    source.mkdir()
    pd.DataFrame({"text": tiny.documents()[:50]}).to_parquet(source / "train.parquet")
    pd.DataFrame({"text": tiny.documents()[50:]}).to_parquet(source / "valid.parquet")
    pairs = pd.DataFrame(
        {
            "uid": ["a", "a", "b"],
            "good": ["the one .", "a two .", "x"],
            "bad": ["one the .", "two a .", "x"],
        }
    )
    pairs.to_parquet(folder / "pairs.parquet")
    request = gpu_shards.ShardRequest(
        source, gpu_shards.FAMILIES, 10**6, "en", 301, folder / "pairs.parquet", 1
    )
    gpu_shards.prepare_shards(request, folder / "shards")
    settings = json.loads((folder / "shards" / "shards.json").read_text())
    for name, block in settings["models"].items():
        for key in ("architecture", "pretrain"):
            block[key] |= tiny.SMALL_SETTINGS[name].get(key, {})
    (folder / "shards" / "shards.json").write_text(json.dumps(settings))


@pytest.fixture
def pretrain_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str], list[str]]]:
    """Return a function that runs the script gpu_pretrain in this process, as `run_script` does."""

    def run(*words: str) -> tuple[int, list[str], list[str]]:
        monkeypatch.setenv("OUT", str(tmp_path))
        folder = ("--work", str(tmp_path / "work"))
        monkeypatch.setattr(sys, "argv", ["gpu_pretrain", "--cpu", *words, *folder])
        code = gpu_pretrain.main()
        output, errors = capsys.readouterr()
        return code, output.splitlines(), errors.splitlines()

    return run


@pytest.fixture(scope="module")
def shards_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that `write_shards` writes."""
    folder = tmp_path_factory.mktemp("made")
    write_shards(folder)
    return folder


@pytest.fixture
def shards(shards_folder: Path, tmp_path: Path) -> Path:
    """A copy of the shards, with their corpus next to them."""
    shutil.copytree(shards_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "shards"


def test_shards_hold_the_same_ids_as_the_tokenizer_stage(shards: Path, tmp_path: Path) -> None:
    settings = gpu_shards.load_settings(shards)
    assert settings["tokens"]["elmo"] == settings["tokens"]["ulmfit"]
    assert len({*settings["tokens"].values()}) == 3
    for key in set(settings["tokens"].values()):
        texts = list(pd.read_parquet(tmp_path / "corpus" / "valid.parquet")["text"])
        expected = encode_corpus(texts, Tokenizer.load(shards / key))
        actual = TokenizedCorpus.load(gpu_shards.unpack_token_ids(shards, key, tmp_path), "valid")
        for name in gpu_shards.ARRAY_TYPES:
            expected_array = getattr(expected, name)
            actual_array = getattr(actual, name)
            assert (expected_array is None) == (actual_array is None)
            assert expected_array is None or (
                np.array_equal(expected_array, actual_array)
                and expected_array.dtype.itemsize == actual_array.dtype.itemsize
            )
    # One pair per group is kept, and pairs of equal sentences are dropped.
    assert list(pd.read_parquet(shards / "pairs.parquet")["good"]) == ["the one ."]


def test_shards_that_are_too_large_are_rejected_with_a_size_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_shards, "MAX_FOLDER_BYTES", 20_000)
    with pytest.raises(InputError, match="at most 0 can travel; try --text-mb"):
        write_shards(tmp_path)
    assert not (tmp_path / "shards").exists()


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
    assert [row["kind"] for row in results["rates"]] == [
        "lineage",
        "lineage, deterministic",
    ]
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


@pytest.mark.parametrize(("file", "content", "message"), [
    ("shards.json", b"{}", "models, tokens and text_bytes are not all there"),
    ("shards.json", b"{", "not a JSON file"),
    ("pairs.parquet", b"x", "no pairs can be read"),
    ("train.npz", None, "train.npz: cannot be read"),
    ("valid.npz", b"PK\x03\x04 cut short", "valid.npz: cannot be read"),
    ("train.npz", b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.", "train.npz: cannot be read"),
])  # fmt: skip
def test_broken_shards_are_rejected_by_name(
    file: str, content: bytes | None, message: str, shards: Path, tmp_path: Path
) -> None:
    key = json.loads((shards / "shards.json").read_text())["tokens"]["gpt"]
    path = shards / key / file if file.endswith(".npz") else shards / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    read = partial(gpu_shards.load_settings, shards)
    if file.endswith(".npz"):
        read = partial(gpu_shards.unpack_token_ids, shards, key, tmp_path / "work")
    with pytest.raises(InputError, match=message):
        read()


@NO_GPU
def test_a_family_missing_in_the_shards_is_rejected(
    shards: Path, tmp_path: Path, pretrain_here: Callable[..., tuple[int, list[str], list[str]]]
) -> None:
    path = shards / "shards.json"
    settings = json.loads(path.read_text())
    del settings["models"]["gpt"]
    path.write_text(json.dumps(settings))
    code, _, errors = pretrain_here("--shards", str(path.parent), "--families", "gpt")
    assert code == 2
    assert len(errors) == 1
    assert "gpt is not among its families; they are bert, elmo, ulmfit" in errors[0]


@NO_GPU
@pytest.mark.parametrize("script", [gpu, gpu_pretrain])
def test_without_a_gpu_the_scripts_print_one_error_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script.__name__])
    assert script.main() == 2
    output, errors = capsys.readouterr()
    assert not output
    assert len(errors.splitlines()) == 1
    assert "no GPU is here" in errors
    assert "--cpu" in errors


def test_pretraining_on_shards_prints_a_line_for_a_family(
    shards: Path, pretrain_here: Callable[..., tuple[int, list[str], list[str]]]
) -> None:
    small = ("--parameters", str(tiny.BODY_PARAMETERS), "--text-bytes", "3000")
    code, printed, _ = pretrain_here("--shards", str(shards), "--families", "gpt", *small)
    assert code == 0
    assert printed[-1].startswith("gpt ")


@pytest.mark.slow
def test_a_killed_pretraining_resumes_to_the_same_weights_and_prints_its_table(
    shards: Path, tmp_path: Path
) -> None:
    words = ["--cpu", "--shards", str(shards), "--parameters", str(tiny.BODY_PARAMETERS), "--precision", "fp32", "--text-bytes", "150000",
             "--families", "gpt", "bert", "--checkpoint-seconds", "0.3"]  # fmt: skip
    code, printed, errors = run_script(
        "gpu_pretrain", *words, "--work", str(tmp_path / "whole"), out=tmp_path / "whole-out"
    )
    assert code == 0, "\n".join(errors)
    killed = start_script(
        "gpu_pretrain", *words, "--work", str(tmp_path / "killed"), out=tmp_path / "out"
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("*/resume/*/step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL and not list(
        (tmp_path / "killed").glob("*/rows/gpt.json")
    ), "the training ended before it could be killed"
    code, printed, errors = run_script(
        "gpu_pretrain", *words, "--work", str(tmp_path / "killed"), out=tmp_path / "out"
    )
    assert (
        code == 0
        and printed[-1].startswith("bert ")
        and printed[-2].startswith("gpt ")
        and printed[-3].startswith("family ")
    ), errors
    for name in ("gpt", "bert"):
        digests = [
            file_digest(next((tmp_path / work).glob(f"*/models/{name}/model.safetensors")))
            for work in ("whole", "killed")
        ]
        assert digests[0] == digests[1]
    rows = json.loads((tmp_path / "out" / "gpu_pretrain.json").read_text())["families"]
    assert all(
        150_000 <= row["text_bytes"] < 155_000 and row["pairs"] in (0.0, 50.0, 100.0)
        for row in rows
    )
    assert rows[0]["bits_per_byte"] > 0 and rows[1]["masked_nats"] > 0


@pytest.mark.slow
def test_minutes_set_one_budget_for_all_families_and_a_second_run_keeps_it(
    shards: Path, tmp_path: Path
) -> None:
    words = ["--cpu", "--shards", str(shards), "--parameters", str(tiny.BODY_PARAMETERS), "--measure-seconds", "0.3", "--minutes", "0.4",
             "--families", "elmo", "ulmfit", "--work", str(tmp_path / "work")]  # fmt: skip
    code, printed, errors = run_script("gpu_pretrain", *words, out=tmp_path)
    assert code in (0, 3) and "family " in "\n".join(printed), "\n".join(errors)
    plan = json.loads(next((tmp_path / "work").glob("*/plan.json")).read_text())
    seconds = sum(plan["text_bytes"] / rate for rate in plan["text_bytes_per_second"].values())
    assert 0 < seconds < 24
    assert run_script("gpu_pretrain", *words, out=tmp_path)[0] in (0, 3)
    assert json.loads(next((tmp_path / "work").glob("*/plan.json")).read_text()) == plan


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
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({names}))\nfrom benchmarks import gpu, gpu_pretrain\n"
        + "\n".join(f"gpu_pretrain.load_family({name!r})" for name in gpu_shards.FAMILIES)
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr.splitlines()[-1]
