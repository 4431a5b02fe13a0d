"""The real-text benchmark measures perplexity, fits bigrams, and names what is missing."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML
from torch.nn import functional as F

from benchmarks import real_text
from benchmarks.bigrams import BigramModel
from lineage.artifacts import create_artifact, write_json, write_table
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training.curve import CurvePoint, LearningCurve
from lineage.training.samplers import BpttBatches
from tests.helpers import tiny

VOCAB_SIZE = 4
TRAIN_IDS = np.array([0, 1, 1, 0, 1, 2, 0, 1])  # pairs 01 11 10 01 12 20 01; 3 does not occur
HELDOUT_IDS = np.array([0, 1, 2, 3, 1, 0, 1])


def build_bigrams(*weights: float) -> BigramModel:
    unweighted = BigramModel.from_pairs(TRAIN_IDS[:-1], TRAIN_IDS[1:], vocab_size=VOCAB_SIZE)
    return BigramModel(
        unweighted.pair_keys_D,
        unweighted.pair_counts_D,
        unweighted.first_counts_V,
        unweighted.second_counts_V,
        weights or unweighted.weights,
    )


def test_perplexity_is_exp_of_the_mean_loss_over_the_whole_vocabulary() -> None:
    checkpoint = tiny.checkpoint("ulmfit")
    texts = tiny.documents()[:8]
    model = checkpoint.build(tiny.CPU, load_weights=False).eval()
    tokenizer = checkpoint.tokenizer
    actual = real_text.measure(checkpoint, model, texts)
    sampler = BpttBatches(encode_corpus(texts, tokenizer), tokenizer, checkpoint.pretrain, seed=0)
    special = tokenizer.special_token_ids
    nats = 0.0
    num_targets = 0
    state = None
    num_unknown = 0
    num_words = 0
    for index in range(sampler.set_epoch(0)):
        batch = sampler.get_batch(index)
        with torch.no_grad():
            outputs, _, state = model.run_layers(batch.ids_BT, state)
            logits = outputs[-1].flatten(0, 1) @ model.body.embedding_weight.T + model.softmax_bias
        targets = batch.targets_BT.flatten()
        nats += float(F.cross_entropy(logits.double(), targets, reduction="sum"))
        num_targets += int((targets != special["<S>"]).sum())
        num_unknown += int((targets == special["<unk>"]).sum())
        num_words += int(((targets != special["<S>"]) & (targets != special["</S>"])).sum())
    assert logits.shape[1] == tokenizer.vocab_size
    assert actual["perplexity_forward"] == pytest.approx(math.exp(nats / num_targets), rel=1e-5)
    assert (
        actual["words"] == num_words and actual["unknown_token_rate"] == num_unknown / num_words > 0
    )


def test_softmax_samples_of_training_do_not_change_the_perplexity() -> None:
    results = []
    for samples in (20, None):
        checkpoint = tiny.checkpoint("elmo", architecture={"softmax_samples": samples})
        results.append(
            real_text.measure(
                checkpoint, checkpoint.build(tiny.CPU, load_weights=False), tiny.documents()[:4]
            )
        )
    assert results[0] == results[1]
    assert set(results[0]) == {
        "perplexity_forward",
        "perplexity_backward",
        "words",
        "unknown_token_rate",
    }


def test_unk_in_wikitext_counts_as_one_unknown_word() -> None:
    checkpoint = tiny.checkpoint("ulmfit")
    model = checkpoint.build(tiny.CPU, load_weights=False)
    known = checkpoint.tokenizer.backend_tokenizer.id_to_token(40)
    without_unk, with_unk = (
        real_text.measure(checkpoint, model, [f"{known} {word} {known} {known}"] * 9)
        for word in (known, "<unk>")
    )
    assert without_unk["unknown_token_rate"] == 0
    assert with_unk["words"] == without_unk["words"]
    assert with_unk["unknown_token_rate"] == pytest.approx(0.25, abs=0.05)


def test_wikitext_tokens_are_joined_into_plain_text() -> None:
    assert (
        real_text.detokenize('a well @-@ known " thing " , 3 @,@ 000 ( 4 @.@ 5 ) of Smith \'s')
        == 'a well-known "thing", 3,000 (4.5) of Smith\'s'
    )


def test_bigram_probabilities_sum_to_one_also_after_unseen_tokens() -> None:
    for before in range(VOCAB_SIZE):
        assert build_bigrams().probabilities(
            np.full(VOCAB_SIZE, before), np.arange(VOCAB_SIZE)
        ).sum() == pytest.approx(1.0, abs=1e-12)


def test_bigram_probabilities_equal_those_computed_by_hand() -> None:
    # The bigram 0 1 is 3 of the 3 bigrams after 0, and 1 is 4 of the 7 tokens; the bigram 1 2 is 1
    # of the 3 after 1, and 2 is 1 of 7. Nothing follows 3, so its bigrams are unigrams.
    expected = [
        0.5 * 3 / 3 + 0.3 * 4 / 7 + 0.2 / 4,
        0.5 * 1 / 3 + 0.3 * 1 / 7 + 0.2 / 4,
        0.8 * 4 / 7 + 0.2 / 4,
        0.2 / 4,
    ]
    assert build_bigrams(0.5, 0.3, 0.2).probabilities(
        np.array([0, 1, 3, 0]), np.array([1, 2, 1, 3])
    ) == pytest.approx(expected, abs=1e-12)


def test_fitted_weights_have_the_highest_likelihood() -> None:
    def nats(model: BigramModel) -> float:
        return -float(np.log(model.probabilities(HELDOUT_IDS[:-1], HELDOUT_IDS[1:])).mean())

    fitted = build_bigrams().fit_weights(HELDOUT_IDS[:-1], HELDOUT_IDS[1:])
    shares = np.linspace(0.01, 0.97, 25)
    others = [
        build_bigrams(a, b, 1 - a - b)
        for a, b in itertools.product(shares, shares)
        if a + b < 0.999
    ]
    assert sum(fitted.weights) == pytest.approx(1.0) and nats(fitted) < nats(build_bigrams()) - 1e-3
    assert nats(fitted) <= min(map(nats, others)) + 1e-6


def test_bigrams_count_the_batches_that_the_training_reads() -> None:
    checkpoint = tiny.checkpoint("gpt")
    sampler = checkpoint.family.batch_sampler(
        tiny.corpus("gpt"), checkpoint.tokenizer, checkpoint.pretrain, seed=3
    )
    num_batches = sampler.set_epoch(0)
    batches = [sampler.get_batch(index) for index in range(2)]
    before, after = real_text.token_pairs(sampler, text_bytes=batches[0].text_bytes + 1)
    assert num_batches > 2
    assert before.tolist() == torch.cat([batch.ids_BT.flatten() for batch in batches]).tolist()
    assert after.tolist() == torch.cat([batch.targets_BT.flatten() for batch in batches]).tolist()


def write_finished_run(folder: Path, *, is_trained: bool) -> Path:
    """Write the files of a run of ULMFiT and GPT that the script reads, and return the folder."""
    tree = tiny.study_params("smoke")
    tree["grid"] |= {
        "models": ["ulmfit", "gpt"],
        "adapt_models": [],
        "adapt_tasks": [],
        "target_only_models": [],
    }
    folder.mkdir()
    with (folder / "params.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)
    for name in ("ulmfit", "gpt") if is_trained else ():
        checkpoint = tiny.checkpoint(name)
        with create_artifact(
            folder / "artifacts" / "pretrained" / name / "0", "model", status="ok", reason=""
        ) as draft:
            checkpoint.save(draft, checkpoint.build(tiny.CPU, load_weights=False))
            write_json(
                draft / "spent.json",
                {"text_bytes": 20_000, "epochs": 0.5, "body_parameters": 12_000},
            )
        tokens_folder = folder / "artifacts" / "tokens" / name
        tokens_folder.mkdir(parents=True)
        for split in ("train", "valid"):
            tiny.corpus(name).save(tokens_folder, split)
        points = [
            CurvePoint(
                step=1,
                progress=share,
                text_bytes=int(20_000 * share),
                loss=5 - share,
                learning_rate=0.1,
            )
            for share in (0.5, 1.0)
        ]
        measure = "bits_per_byte" if name == "gpt" else "bits_per_byte_forward"
        points[0] = replace(points[0], validation={measure: 2.5})
        write_table(
            folder / "artifacts" / "results" / "curves" / f"pretrain-{name}-0.parquet",
            LearningCurve(points).to_frame(),
        )
    return folder


def write_texts(root: Path) -> Path:
    (root / "corpus-small").mkdir(parents=True)
    for path in real_text.HELDOUT_PATHS.values():
        pd.DataFrame({"text": tiny.documents()[:6]}).to_parquet(root / path)
    return root


def test_a_finished_run_is_measured_and_plotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LINEAGE_DATA_ROOT", str(write_texts(tmp_path / "data")))
    out = tmp_path / "out"
    out.mkdir()
    assert (
        real_text.main(
            [str(write_finished_run(tmp_path / "toy", is_trained=True)), "--out", str(out)]
        )
        == 0
    )
    results = json.loads((out / "real_text.json").read_text())
    assert [(system["study"], system["model"]) for system in results["systems"]] == [
        ("toy", "ulmfit"),
        ("toy", "gpt"),
    ]
    word_scores, token_scores = (system["held"]["test"] for system in results["systems"])
    assert 301 < word_scores["perplexity_forward"] < 301**1.2, (
        "an untrained model has a perplexity of about the vocabulary size, and <S> adds to it"
    )
    assert token_scores["bits_per_byte"] > token_scores["bigram_bits_per_byte"] > 0, (
        "an untrained model is worse than bigrams"
    )
    assert results["systems"][1]["last_check"] == {"validation_bits_per_byte": 2.5}
    shown = capsys.readouterr().out
    assert shown.rstrip("\n") == (out / "real_text.md").read_text().rstrip("\n")
    assert "| AWD-LSTM, 750 epochs | 68.7 | 65.6 |" in shown
    table = pd.read_csv(out / "real_text.csv")
    assert table.groupby("model").size().to_dict() == {"gpt": 2, "ulmfit": 2}
    assert table["validation_bits_per_byte"].dropna().tolist() == [2.5]
    plot = (out / "real_text.svg").read_text()
    assert plot.count("<svg ") == 3
    assert "var(" not in plot
    assert "bits per byte of words, forward" in plot
    assert "gpt (toy)" in plot


def test_a_folder_without_models_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, expected in (
        (tmp_path / "nothing", "no study is here"),
        (write_finished_run(tmp_path / "toy", is_trained=False), "ulmfit was not trained"),
    ):
        assert real_text.main([str(folder)]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1 and expected in message and "lineage run" in message


def test_a_missing_text_ends_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LINEAGE_DATA_ROOT", str(tmp_path))
    assert (
        real_text.main(
            [str(write_finished_run(tmp_path / "toy", is_trained=True)), "--out", str(tmp_path)]
        )
        == 2
    )
    assert "data_root" in capsys.readouterr().err
