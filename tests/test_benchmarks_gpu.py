"""The scripts for a machine with a GPU, at toy sizes on this one: they end with their table, go on after a kill, and say at once what is missing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
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
from tests import tiny

ROOT = Path(__file__).parent.parent
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def started(script: str, *words: str, out: Path) -> "subprocess.Popen[str]":
    """A script of the folder, as its user starts it."""
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


def ended(script: str, *words: str, out: Path) -> tuple[int, list[str], list[str]]:
    """Its exit code and its lines."""
    process = started(script, *words, out=out)
    printed, said = process.communicate(timeout=300)
    return process.returncode, printed.splitlines(), said.splitlines()


def prepare(folder: Path) -> None:
    """Shards of the generated language, with settings for seconds instead of minutes, beside what they are made of."""
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
    wanted = gpu_shards.Wanted(
        source, gpu_shards.FAMILIES, 10**6, "en", 301, folder / "pairs.parquet", 1
    )
    gpu_shards.prepare(wanted, folder / "shards")
    settings = json.loads((folder / "shards" / "shards.json").read_text())
    for name, block in settings["models"].items():
        for key in ("architecture", "pretrain"):
            block[key] |= tiny.SMALL[name].get(key, {})
    (folder / "shards" / "shards.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that `prepare` writes."""
    folder = tmp_path_factory.mktemp("made")
    prepare(folder)
    return folder


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    """A copy of the shards, with their corpus beside them."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "shards"


def test_shards_hold_the_very_ids_that_the_tokenizer_stage_writes(
    shards: Path, tmp_path: Path
) -> None:
    settings = gpu_shards.settings_of(shards)
    assert (
        settings["tokens"]["elmo"] == settings["tokens"]["ulmfit"]
        and len({*settings["tokens"].values()}) == 3
    )
    for key in set(settings["tokens"].values()):
        texts = list(pd.read_parquet(tmp_path / "corpus" / "valid.parquet")["text"])
        expected, found = (
            encode_corpus(texts, Tokenizer.load(shards / key)),
            TokenizedCorpus.load(gpu_shards.unpack(shards, key, tmp_path), "valid"),
        )
        for name in gpu_shards.TYPES:
            one, other = getattr(expected, name), getattr(found, name)
            assert (one is None) == (other is None)
            assert one is None or (
                np.array_equal(one, other) and one.dtype.itemsize == other.dtype.itemsize
            )
    assert list(pd.read_parquet(shards / "pairs.parquet")["good"]) == [
        "the one ."
    ]  # one a group, and none of equal sentences


def test_shards_that_are_too_large_are_refused_with_a_size_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_shards, "MOST_BYTES", 20_000)
    with pytest.raises(InputError, match="at most 0 can travel; try --text-mb"):
        prepare(tmp_path)
    assert not (tmp_path / "shards").exists()


def test_the_plain_cells_are_the_same_models() -> None:
    """What ours is measured against computes the same thing, so that the ratio is one of speed alone."""
    for work in (gpu_models.small(work) for work in gpu_models.papers()[3:5]):
        model, batch = (
            gpu_models.build(work, tiny.CPU).eval(),
            gpu_models.stream_of(work).get_batch(0),
        )
        objective = work.family.objective
        assert objective is not None
        ours = float(objective(model, batch, None).loss.detach())
        steps = gpu_rates._two_way_steps if work.family.name == "elmo" else gpu_rates._one_way_steps
        for layer in model.body.layers:
            object.__setattr__(layer, "forward", steps(layer))
        assert float(objective(model, batch, None).loss.detach()) == pytest.approx(ours, rel=1e-6)


def test_the_costs_are_those_of_the_papers_sizes_and_of_lineages_own_count() -> None:
    costs = {
        w.name: gpu_models.formula_flops(w, gpu_models.random_batch(w, np.random.default_rng(0)))
        / 1e6
        for w in gpu_models.papers()
    }
    assert [
        round(costs[name])
        for name in ("BERT-base T 128", "BERT-base T 512", "GPT-1 T 512", "AWD-LSTM batch 64")
    ] == [545, 588, 724, 193]
    assert 559 <= costs["ELMo original"] <= 663
    for work in map(gpu_models.small, gpu_models.papers()[2:5]):
        batch = gpu_models.stream_of(work).get_batch(0)
        counted = gpu_models.counted_flops(gpu_models.build(work, tiny.CPU), work, batch)
        assert counted == pytest.approx(gpu_models.formula_flops(work, batch), rel=0.05)


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check against the CPU can fail: here the second model, which stands for the GPU's, has one weight that is off."""
    work = gpu_models.papers()[4]
    assert all(row["ok"] for row in gpu_check.against_cpu(work, tiny.CPU))
    load = torch.nn.Module.load_state_dict

    def off(self: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
        load(
            self,
            state
            | {
                "softmax_bias": state["softmax_bias"]
                + torch.linspace(0, 0.1, len(state["softmax_bias"]))
            },
        )

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", off)
    assert not all(row["ok"] for row in gpu_check.against_cpu(work, tiny.CPU))


def test_the_bench_ends_with_its_table_and_writes_it(tmp_path: Path) -> None:
    only = "AWD-LSTM batch 64, lineage"
    code, printed, _ = ended(
        "gpu", "--cpu", "--no-compile", "--measure-seconds", "0.01", "--only", only, out=tmp_path
    )
    assert (
        code == 0
        and printed[-1].startswith("AWD-LSTM batch 64 toy")
        and any(line.startswith("training in bf16") for line in printed)
    )
    assert "two runs of one seed end in the same bytes: ulmfit" in printed
    assert any(line.startswith(f"not run: {only}, compiled: --no-compile") for line in printed)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["kind"] for row in found["rates"]] == [
        "lineage",
        "lineage, deterministic",
    ] and found["machine"]["tflops_768"] > 0
    assert min(row["tokens_per_second"] for row in found["rates"]) > 0


@pytest.mark.slow
def test_the_bench_runs_every_row_that_a_processor_can(tmp_path: Path) -> None:
    code, printed, said = ended(
        "gpu", "--cpu", "--no-compile", "--measure-seconds", "0.01", out=tmp_path
    )
    assert code == 0 and "end in the same bytes: bert, gpt, elmo, ulmfit" in "\n".join(printed), (
        said
    )
    known = (
        "a CUDA graph needs a GPU",
        "--no-compile",
        "no cuDNN here that takes a bf16 LSTM",
        "transformers is not installed here",
    )
    assert all(
        row["reason"] in known for row in json.loads((tmp_path / "gpu.json").read_text())["not_run"]
    )


def test_a_row_ends_at_its_limit_and_the_others_go_on(tmp_path: Path) -> None:
    bench, done = gpu.Bench(tiny.CPU, tmp_path, time.monotonic() + 60, 0.1), list[str]()
    bench.row("slow", 1.2, lambda: time.sleep(30))
    bench.row("wrong", 5, lambda: done[7].lower() and None)
    bench.row("right", 5, lambda: done.append("right"))
    bench.ends = time.monotonic()
    bench.row("late", 5, lambda: done.append("late"))
    assert done == ["right"] and json.loads((tmp_path / "gpu.json").read_text())["not_run"] == [
        {"row": "slow", "reason": "not done within 1 s"},
        {"row": "wrong", "reason": "IndexError: list index out of range"},
        {"row": "late", "reason": "no time left"},
    ]


@pytest.mark.parametrize(("file", "content", "said"), [
    ("shards.json", b"{}", "models, tokens and text_bytes are not all there"),
    ("shards.json", b"{", "not a JSON file"),
    ("pairs.parquet", b"x", "no pairs can be read"),
    ("train.npz", None, "train.npz: cannot be read"),
    ("valid.npz", b"PK\x03\x04 cut short", "valid.npz: cannot be read"),
    ("train.npz", b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.", "train.npz: cannot be read"),
])  # fmt: skip
def test_broken_shards_are_refused_by_name(
    file: str, content: bytes | None, said: str, shards: Path, tmp_path: Path
) -> None:
    key = json.loads((shards / "shards.json").read_text())["tokens"]["gpt"]
    path = shards / key / file if file.endswith(".npz") else shards / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    read = (
        partial(gpu_shards.unpack, shards, key, tmp_path / "work")
        if file.endswith(".npz")
        else partial(gpu_shards.settings_of, shards)
    )
    with pytest.raises(InputError, match=said):
        read()


@NO_GPU
def test_a_family_that_the_shards_have_not_is_refused(shards: Path, tmp_path: Path) -> None:
    path = shards / "shards.json"
    settings = json.loads(path.read_text())
    del settings["models"]["gpt"]
    path.write_text(json.dumps(settings))
    code, _, said = ended(
        "gpu_pretrain",
        "--cpu",
        "--shards",
        str(path.parent),
        "--families",
        "gpt",
        "--work",
        str(tmp_path / "work"),
        out=tmp_path,
    )
    assert (
        code == 2
        and len(said) == 1
        and "gpt is not among its families; they are bert, elmo, ulmfit" in said[0]
    )


@NO_GPU
@pytest.mark.parametrize("script", [gpu, gpu_pretrain])
def test_without_a_gpu_one_line_says_so(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script.__name__])
    assert script.main() == 2
    printed, said = capsys.readouterr()
    assert (
        not printed and len(said.splitlines()) == 1 and "no GPU is here" in said and "--cpu" in said
    )


@pytest.mark.slow
def test_a_pretraining_that_is_killed_goes_on_to_the_same_weights_and_ends_with_its_table(
    shards: Path, tmp_path: Path
) -> None:
    words = ["--cpu", "--shards", str(shards), "--parameters", str(tiny.PARAMETERS), "--precision", "fp32", "--text-bytes", "150000",
             "--families", "gpt", "bert", "--checkpoint-seconds", "0.3"]  # fmt: skip
    code, printed, said = ended(
        "gpu_pretrain", *words, "--work", str(tmp_path / "whole"), out=tmp_path / "whole-out"
    )
    assert code == 0, said
    killed = started(
        "gpu_pretrain", *words, "--work", str(tmp_path / "killed"), out=tmp_path / "out"
    )
    until = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("*/resume/*/step-*")) and time.monotonic() < until:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL and not list(
        (tmp_path / "killed").glob("*/rows/gpt.json")
    ), "it ended before it could be killed"
    code, printed, said = ended(
        "gpu_pretrain", *words, "--work", str(tmp_path / "killed"), out=tmp_path / "out"
    )
    assert (
        code == 0
        and printed[-1].startswith("bert ")
        and printed[-2].startswith("gpt ")
        and printed[-3].startswith("family ")
    ), said
    for name in ("gpt", "bert"):
        one, other = (
            file_digest(next((tmp_path / way).glob(f"*/models/{name}/model.safetensors")))
            for way in ("whole", "killed")
        )
        assert one == other
    rows = json.loads((tmp_path / "out" / "gpu_pretrain.json").read_text())["families"]
    assert all(
        150_000 <= row["text_bytes"] < 155_000 and row["pairs"] in (0.0, 50.0, 100.0)
        for row in rows
    )
    assert rows[0]["bits_per_byte"] > 0 and rows[1]["masked_nats"] > 0


@pytest.mark.slow
def test_the_minutes_set_one_budget_for_all_which_a_second_run_keeps(
    shards: Path, tmp_path: Path
) -> None:
    words = ["--cpu", "--shards", str(shards), "--parameters", str(tiny.PARAMETERS), "--measure-seconds", "0.3", "--minutes", "0.4",
             "--families", "elmo", "ulmfit", "--work", str(tmp_path / "work")]  # fmt: skip
    code, printed, said = ended("gpu_pretrain", *words, out=tmp_path)
    assert code in (0, 3) and "family " in "\n".join(printed), said
    plan = json.loads(next((tmp_path / "work").glob("*/plan.json")).read_text())
    seconds = sum(plan["text_bytes"] / rate for rate in plan["text_bytes_per_second"].values())
    assert 0 < seconds < 24
    assert ended("gpu_pretrain", *words, out=tmp_path)[0] in (0, 3)
    assert json.loads(next((tmp_path / "work").glob("*/plan.json")).read_text()) == plan


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="two runs on a GPU can only be compared where one is"
)
@pytest.mark.parametrize("number", [0, 2, 3, 4])
def test_two_runs_on_a_gpu_end_in_the_same_bytes(number: int) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        for row in gpu_check.same_bytes(gpu_models.papers()[number], select_device("cuda")):
            assert row["ok"] and row["told_apart"], row
    finally:
        torch.use_deterministic_algorithms(before)


def test_the_scripts_need_no_more_than_a_machine_that_trains_has() -> None:
    """torch, numpy, pandas, pyarrow, safetensors, tokenizers: everything else of what lineage stands on may be missing there."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    there = {
        "torch",
        "numpy",
        "pandas",
        "pyarrow",
        "safetensors",
        "tokenizers",
        "psutil",
    }  # torch itself looks for psutil
    missing = [re.split(r"[^\w.-]", line)[0] for line in metadata]
    names = [
        {"scikit-learn": "sklearn", "ruamel.yaml": "ruamel"}.get(n, n)
        for n in missing
        if n not in there
    ]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({names}))\nfrom benchmarks import gpu, gpu_pretrain\n"
        + "\n".join(f"gpu_pretrain.load_family({name!r})" for name in gpu_shards.FAMILIES)
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr.splitlines()[-1]
