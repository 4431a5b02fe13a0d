"""What is measured of real text: perplexities over the whole vocabulary, bigrams that are a distribution, and a script that says what is missing."""

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
from benchmarks.bigrams import Bigrams
from lineage.artifacts import create_artifact, write_json, write_table
from lineage.tokenizers.token_ids import encode_corpus
from lineage.training.curve import CurvePoint, LearningCurve
from lineage.training.samplers import BpttBatches
from tests import tiny

PROFILES = Path(__file__).parent.parent / "profiles"
VOCABULARY = 4
LEARNED = np.array([0, 1, 1, 0, 1, 2, 0, 1])  # pairs 01 11 10 01 12 20 01; 3 was never seen
HELD = np.array([0, 1, 2, 3, 1, 0, 1])


def bigrams(*weights: float) -> Bigrams:
    found = Bigrams.counted(LEARNED[:-1], LEARNED[1:], VOCABULARY)
    return Bigrams(
        found.pairs_D, found.count_D, found.before_V, found.after_V, weights or found.weights
    )


def test_perplexity_is_exp_of_the_mean_loss_over_the_whole_vocabulary() -> None:
    checkpoint, texts = tiny.checkpoint("ulmfit"), tiny.documents()[:8]
    model, reader = checkpoint.build(tiny.CPU, load_weights=False).eval(), checkpoint.tokenizer
    found = real_text.measured(checkpoint, model, texts)
    lanes, nats, count, state, unknown, words = (
        BpttBatches(encode_corpus(texts, reader), reader, checkpoint.pretrain, seed=0),
        0.0,
        0,
        None,
        0,
        0,
    )
    for index in range(lanes.set_epoch(0)):
        batch = lanes.get_batch(index)
        with torch.no_grad():
            outputs, _, state = model.run_layers(batch.ids_BT, state)
            logits = outputs[-1].flatten(0, 1) @ model.body.embedding_weight.T + model.softmax_bias
        targets = batch.targets_BT.flatten()
        nats += float(F.cross_entropy(logits.double(), targets, reduction="sum"))
        count += sum(int(target) != reader.special_token_ids["<S>"] for target in targets)
        unknown += sum(int(target) == reader.special_token_ids["<unk>"] for target in targets)
        words += sum(
            int(target) not in (reader.special_token_ids["<S>"], reader.special_token_ids["</S>"])
            for target in targets
        )
    assert logits.shape[1] == reader.vocab_size
    assert found["perplexity_forward"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert found["words"] == words and found["unknown_token_rate"] == unknown / words > 0


def test_candidates_of_training_do_not_change_a_perplexity() -> None:
    found = []
    for samples in (20, None):
        checkpoint = tiny.checkpoint("elmo", architecture={"softmax_samples": samples})
        found.append(
            real_text.measured(
                checkpoint, checkpoint.build(tiny.CPU, load_weights=False), tiny.documents()[:4]
            )
        )
    assert found[0] == found[1] and set(found[0]) == {
        "perplexity_forward",
        "perplexity_backward",
        "words",
        "unknown_token_rate",
    }


def test_what_is_unknown_in_wikitext_is_one_unknown_word() -> None:
    checkpoint = tiny.checkpoint("ulmfit")
    model, known = (
        checkpoint.build(tiny.CPU, load_weights=False),
        checkpoint.tokenizer.backend_tokenizer.id_to_token(40),
    )
    plain, marked = (
        real_text.measured(checkpoint, model, [f"{known} {word} {known} {known}"] * 9)
        for word in (known, "<unk>")
    )
    assert (
        plain["unknown_token_rate"] == 0
        and marked["words"] == plain["words"]
        and marked["unknown_token_rate"] == pytest.approx(0.25, abs=0.05)
    )


def test_tokens_are_put_back_into_writing() -> None:
    assert (
        real_text.as_written('a well @-@ known " thing " , 3 @,@ 000 ( 4 @.@ 5 ) of Smith \'s')
        == 'a well-known "thing", 3,000 (4.5) of Smith\'s'
    )


def test_bigrams_are_a_distribution_also_after_what_was_never_seen() -> None:
    for before in range(VOCABULARY):
        assert bigrams().probabilities(
            np.full(VOCABULARY, before), np.arange(VOCABULARY)
        ).sum() == pytest.approx(1.0, abs=1e-12)


def test_bigrams_are_the_sum_by_hand() -> None:
    # c(0 1) = 3 of c(0 .) = 3; 1 comes 4 times of 7; c(1 2) = 1 of 3, 2 once of 7; 3 was never before anything, so its bigrams are unigrams
    expected = [
        0.5 * 3 / 3 + 0.3 * 4 / 7 + 0.2 / 4,
        0.5 * 1 / 3 + 0.3 * 1 / 7 + 0.2 / 4,
        0.8 * 4 / 7 + 0.2 / 4,
        0.2 / 4,
    ]
    assert bigrams(0.5, 0.3, 0.2).probabilities(
        np.array([0, 1, 3, 0]), np.array([1, 2, 1, 3])
    ) == pytest.approx(expected, abs=1e-12)


def test_fitted_weights_are_the_likeliest() -> None:
    def nats(some: Bigrams) -> float:
        return -float(np.log(some.probabilities(HELD[:-1], HELD[1:])).mean())

    fitted = bigrams().fitted(HELD[:-1], HELD[1:])
    shares = np.linspace(0.01, 0.97, 25)
    others = [
        bigrams(a, b, 1 - a - b) for a, b in itertools.product(shares, shares) if a + b < 0.999
    ]
    assert sum(fitted.weights) == pytest.approx(1.0) and nats(fitted) < nats(bigrams()) - 1e-3
    assert nats(fitted) <= min(map(nats, others)) + 1e-6


def test_bigrams_count_the_very_batches_of_a_training() -> None:
    checkpoint = tiny.checkpoint("gpt")
    stream = checkpoint.family.batch_sampler(
        tiny.tokens("gpt"), checkpoint.tokenizer, checkpoint.pretrain, seed=3
    )
    passed = stream.set_epoch(0)
    first = [stream.get_batch(index) for index in range(2)]
    before, after = real_text.pairs(stream, text_bytes=first[0].text_bytes + 1)
    assert (
        passed > 2
        and before.tolist() == torch.cat([batch.ids_BT.flatten() for batch in first]).tolist()
    )
    assert after.tolist() == torch.cat([batch.targets_BT.flatten() for batch in first]).tolist()


def finished(folder: Path, *, trained: bool) -> Path:
    """The worktree of a run of ULMFiT and GPT, as far as the script reads it."""
    tree = tiny.composed("smoke")
    tree["grid"] |= {"models": ["ulmfit", "gpt"], "adapt_models": [], "adapt_tasks": []}
    folder.mkdir()
    with (folder / "params.yaml").open("w") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)
    for name in ("ulmfit", "gpt") if trained else ():
        checkpoint = tiny.checkpoint(name)
        with create_artifact(
            folder / "artifacts" / "pretrained" / name / "0", "model", status="ok", reason=""
        ) as draft:
            checkpoint.save(draft, checkpoint.build(tiny.CPU, load_weights=False))
            write_json(
                draft / "spent.json",
                {"text_bytes": 20_000, "epochs": 0.5, "body_parameters": 12_000},
            )
        home = folder / "artifacts" / "tokens" / name
        home.mkdir(parents=True)
        for split in ("train", "valid"):
            tiny.tokens(name).save(home, split)
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


def texts(root: Path) -> Path:
    (root / "corpus-small").mkdir(parents=True)
    for path in real_text.HELD.values():
        pd.DataFrame({"text": tiny.documents()[:6]}).to_parquet(root / path)
    return root


def test_a_finished_run_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LINEAGE_DATA_ROOT", str(texts(tmp_path / "data")))
    out = tmp_path / "out"
    out.mkdir()
    assert real_text.main([str(finished(tmp_path / "toy", trained=True)), "--out", str(out)]) == 0
    found = json.loads((out / "real_text.json").read_text())
    assert [(one["profile"], one["model"]) for one in found["systems"]] == [
        ("toy", "ulmfit"),
        ("toy", "gpt"),
    ]
    words, pieces = (one["held"]["test"] for one in found["systems"])
    assert 301 < words["perplexity_forward"] < 301**1.2, (
        "untrained: about as many as there are words, and the nats of <S> on top"
    )
    assert pieces["bits_per_byte"] > pieces["bigram_bits_per_byte"] > 0, "random"
    assert found["systems"][1]["last_check"] == {"validation_bits_per_byte": 2.5}
    shown = capsys.readouterr().out
    assert (
        shown.rstrip("\n") == (out / "real_text.md").read_text().rstrip("\n")
        and "| AWD-LSTM, 750 epochs | 68.7 | 65.6 |" in shown
    )
    table = pd.read_csv(out / "real_text.csv")
    assert table.groupby("model").size().to_dict() == {"gpt": 2, "ulmfit": 2} and table[
        "validation_bits_per_byte"
    ].dropna().tolist() == [2.5]
    drawn = (out / "real_text.svg").read_text()
    assert (
        drawn.count("<svg ") == 3
        and "var(" not in drawn
        and "bits per byte of words, forward" in drawn
        and "gpt (toy)" in drawn
    )


def test_a_folder_without_models_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, words in (
        (tmp_path / "nothing", "no run is here"),
        (finished(tmp_path / "toy", trained=False), "ulmfit was not trained"),
    ):
        assert real_text.main([str(folder)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and words in said and "--profile" in said


def test_a_missing_text_ends_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LINEAGE_DATA_ROOT", str(tmp_path))
    assert (
        real_text.main([str(finished(tmp_path / "toy", trained=True)), "--out", str(tmp_path)]) == 2
    )
    assert "data_root" in capsys.readouterr().err
