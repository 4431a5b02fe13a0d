"""From a pretrained network to a task: what is frozen stays, what is shared is computed once, and no test item chooses anything."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from lineage.data.task_data import TaskData
from lineage.evaluation import systems
from lineage.evaluation.encoding import collate_items, encode_items, encode_word_in_context
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.finetuning import finetune, predict_finetuned, unfreeze_layers
from lineage.evaluation.linear_probe import extract_features, fit_linear_probe
from lineage.evaluation.settings import EvaluateSettings, FinetuneSettings, LinearProbeSettings
from lineage.evaluation.systems import EvalContext, EvalRun
from lineage.models.base import Encoder
from lineage.report.notes import format_notes
from lineage.results import results_frame
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.optimizers import build_adamw, build_param_groups
from tests import tiny

TUNED = FinetuneSettings(
    epochs=2,
    batch_size=5,
    learning_rate=0.005,
    layer_lr_decay=1.6,
    cut_frac=0.1,
    ratio=32.0,
    gradual_unfreezing=0.5,
    weight_decay=0.01,
    dropout=0.1,
    max_grad_norm=1.0,
)
FROZEN = LinearProbeSettings(l2=0.001, max_iter=60)
RNG = np.random.default_rng(8)


def items(count: int) -> pd.DataFrame:
    """Texts whose label is whether they begin with a certain word."""
    words = sorted({w for d in tiny.documents() for w in d.split()})[:60]
    labels = RNG.integers(2, size=count)
    texts = [" ".join([words[label], *RNG.choice(words[2:], 5)]) for label in labels]
    return pd.DataFrame(
        {"id": [str(i) for i in range(count)], "text": texts, "label": labels, "group": "all"}
    )


@pytest.fixture(scope="module")
def task() -> TaskData:
    """A small task of two labels."""
    facts = {
        "name": "first_word",
        "kind": "text_classification",
        "answer": "label",
        "labels": ["a", "b"],
        "metric": ["accuracy", "macro_f1"],
        "max_tokens": 20,
        "language": "en",
    }
    return TaskData(facts, {"train": items(60), "validation": items(13), "test": items(29)})


def setting(name: str, task: TaskData) -> EvalContext:
    """The tiny model, which has an untrained twin only."""
    return EvalContext(
        tiny.checkpoint(name),
        task,
        EvaluateSettings(linear_probe=FROZEN, bilstm_probe=tiny.NETWORK, finetune=TUNED),
        0,
        1000,
        "fp32",
        tiny.CPU,
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.slow(tiny.CELLS)])
def test_a_linear_reader_finds_what_the_features_hold(name: str, task: TaskData) -> None:
    reader, model = tiny.reader(name), tiny.model(name)
    found = {
        s: encode_items(t, reader, max_length=20, language="en") for s, t in task.splits.items()
    }
    features = {s: extract_features(model, reader, i, precision="fp32") for s, i in found.items()}
    assert features["train"].shape == (60, len(model.hidden_sizes()), max(model.hidden_sizes()))
    gold = {s: t["label"].to_numpy() for s, t in task.splits.items()}
    head = fit_linear_probe(features["train"], gold["train"], tiny.labels(2), FROZEN, seed=0)
    assert (head(features["train"]).argmax(1) == gold["train"]).mean() > 0.9
    np.testing.assert_allclose(head(features["test"]).sum(1), 1.0)
    again = fit_linear_probe(features["train"], gold["train"], tiny.labels(2), FROZEN, seed=0)
    np.testing.assert_array_equal(head(features["test"]), again(features["test"]))


def test_after_a_few_steps_a_classifier_reads_by_the_statistics_of_its_training_items(
    task: TaskData,
) -> None:
    """Else an untrained network, whose features hardly vary, would read noise after the few steps of a hundred labels."""
    reader = tiny.reader("ulmfit")
    items = encode_items(task.splits["train"], reader, max_length=20, language="en")
    settings = FinetuneSettings(**{**vars(TUNED), "epochs": 1, "dropout": 0.0})
    model = finetune(
        tiny.model("ulmfit"),
        reader,
        items,
        task.splits["train"]["label"].to_numpy(),
        tiny.labels(2),
        settings,
        seed=3,
        precision="fp32",
    )
    found = predict_finetuned(model, reader, items, precision="fp32")
    model.train()
    model.encoder.eval()
    with torch.no_grad():
        alike = torch.softmax(model(collate_items(reader, items)).double(), -1).numpy()
    np.testing.assert_allclose(found, alike, atol=0.01)


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC, *tiny.slow(tiny.CELLS)])
def test_tuning_learns_and_repeats(name: str, task: TaskData) -> None:
    reader = tiny.reader(name)
    train_items = encode_items(task.splits["train"], reader, max_length=20, language="en")
    gold = task.splits["train"]["label"].to_numpy()
    # a mean of words moves slowly; and ELMo's convolutions begin at next to nothing: at 0.005 it learned with one seed of eight, at 0.02 with all
    rate = 0.05 if name in (*tiny.STATIC, "context2vec") else 0.02 if name == "elmo" else 0.005

    def said(epochs: int) -> np.ndarray:
        settings = FinetuneSettings(**{**vars(TUNED), "epochs": epochs, "learning_rate": rate})
        model = finetune(
            tiny.model(name),
            reader,
            train_items,
            gold,
            tiny.labels(2),
            settings,
            seed=3,
            precision="fp32",
        )
        return predict_finetuned(model, reader, train_items, precision="fp32")

    assert (said(25).argmax(1) == gold).mean() > 0.9
    np.testing.assert_array_equal(said(1), said(1))


def test_frozen_groups_are_bit_identical_and_thaw_from_the_top() -> None:
    model = tiny.model("bert")
    groups = model.layer_groups()
    before = [[p.detach().clone() for p in group] for group in groups]
    optimizer = build_adamw(build_param_groups(groups, weight_decay=0.1))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    batch = tiny.reader("bert").collate(tiny.reader("bert").encode_batch(["a b c", "b d"]))
    learned = []
    for progress in (Fraction(0), Fraction(1, 4), Fraction(1, 2)):
        unfreeze_layers(optimizer, progress, 0.5)
        optimizer.zero_grad(set_to_none=True)
        model.pool(model.encode(batch), batch).sum().backward()
        optimizer.step()
        learned.append(
            [
                not all(torch.equal(a, b) for a, b in zip(old, group, strict=True))
                for old, group in zip(before, groups, strict=True)
            ]
        )
    assert learned == [[False, False, True], [False, True, True], [True, True, True]]


def test_the_recipe_names_the_techniques_that_are_on() -> None:
    assert TUNED.recipe == "discriminative+slanted_triangular+gradual"
    assert (
        FinetuneSettings(
            **{**vars(TUNED), "layer_lr_decay": 1.0, "ratio": 1.0, "gradual_unfreezing": 0.0}
        ).recipe
        == "plain"
    )


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_the_asked_word_is_found_behind_any_context(name: str) -> None:
    reader, words = tiny.reader(name), tiny.documents()[0].split()[:90]
    for target in (0, 3, 44, 89):
        item = encode_word_in_context(words, target, reader, max_length=16, language="en")
        assert len(item.encoded.ids) <= 16
        ids = item.encoded.ids[item.word_pieces[0][:, 0]]
        alone = reader.encode(words[target])
        assert list(ids) == list(alone.ids[alone.offsets[:, 1] > 0])


def test_cells_are_computed_once_and_features_shared(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = systems.extract_features
    monkeypatch.setattr(
        systems, "extract_features", lambda *a, **k: calls.append("features") or real(*a, **k)
    )
    found = setting("gpt", task)
    some = [
        c
        for c in list_runs(tiny.asked("text_classification"), ("random",), (20, "all"), (0, 1))
        if c.transfer == "frozen" or c.label_count == 20
    ]
    rows, predictions = evaluate_runs(
        found, some, cache_dir=tmp_path, report_progress=lambda *_: None
    )
    assert calls == ["features"] * 3, "one pass a split, for all label counts and seeds"
    kept = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    again, _ = evaluate_runs(found, some, cache_dir=tmp_path, report_progress=lambda *_: None)
    assert kept == {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} and results_frame(
        rows
    ).equals(results_frame(again))
    frame = results_frame(rows)
    assert (
        set(frame["train_examples"]) == {20, 60}
        and set(frame["metric"]) == {"accuracy", "macro_f1"}
        and set(frame["split"]) == {"validation", "test"}
    )
    cell = predictions[
        (predictions["split"] == "test")
        & (predictions["transfer"] == "frozen")
        & (predictions["label_count"] == "all")
        & (predictions["finetune_seed"] == 1)
    ]
    value = frame[
        (frame["split"] == "test")
        & (frame["transfer"] == "frozen")
        & (frame["label_count"] == "all")
        & (frame["finetune_seed"] == 1)
    ].set_index("metric")["value"]
    assert len(cell) == 29 and cell["correct"].mean() == pytest.approx(value["accuracy"])


def test_a_cell_that_is_not_finite_is_a_row_and_the_others_go_on(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = systems.predict_finetuned

    def broken(model: Any, *arguments: Any, **more: Any) -> np.ndarray:
        return real(model, *arguments, **more) * np.nan

    monkeypatch.setattr(systems, "predict_finetuned", broken)
    rows, _ = evaluate_runs(
        setting("gpt", task),
        [EvalRun("random", "finetuned", 20, 0), EvalRun("random", "frozen", 20, 0)],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert {(r.transfer, r.status) for r in rows} == {("finetuned", "failed"), ("frozen", "ok")}
    assert "not finite" in next(format_notes(r.reason) for r in rows if r.status == "failed")


def test_a_failed_pretraining_leaves_its_untrained_twin_in_the_table(
    task: TaskData, tmp_path: Path
) -> None:
    found = dataclasses.replace(setting("gpt", task), failure_reason="the loss is nan at step 5")
    rows, predictions = evaluate_runs(
        found,
        [EvalRun("pretrained", "frozen", 20, 0), EvalRun("random", "frozen", 20, 0)],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert {(r.init, r.status) for r in rows} == {("pretrained", "failed"), ("random", "ok")}
    assert set(predictions["init"]) == {"random"}


def test_a_position_that_no_training_reached_is_not_read(task: TaskData) -> None:
    found = setting("gpt", task)
    assert found.max_input_positions == min(
        found.checkpoint.architecture.max_positions, found.checkpoint.pretrain.seq_len
    )
    assert (
        all(len(item.encoded.ids) <= found.max_input_positions for item in found.items["train"])
        and 0 < found.truncated_share("train") <= 1
    )


def test_the_network_that_is_kept_is_the_first_seed_with_the_most_labels_whenever_it_was_killed(
    task: TaskData, tmp_path: Path
) -> None:
    found = setting("gpt", task)
    some = [
        c
        for c in list_runs(tiny.asked("text_classification"), ("random",), (20, "all"), (0, 1))
        if c.transfer == "finetuned"
    ]
    (tmp_path / "killed").mkdir()
    evaluate_runs(found, some[:1], cache_dir=tmp_path / "killed", report_progress=lambda *_: None)
    for place in ("whole", "killed"):
        (tmp_path / place).mkdir(exist_ok=True)
        evaluate_runs(found, some, cache_dir=tmp_path / place, report_progress=lambda *_: None)
    kept = [load_file(tmp_path / place / "finetuned.safetensors") for place in ("whole", "killed")]
    train_items = encode_items(
        task.splits["train"],
        tiny.reader("gpt"),
        max_length=found.max_input_positions,
        language="en",
    )
    model = finetune(
        tiny.model("gpt"),
        tiny.reader("gpt"),
        train_items,
        task.splits["train"]["label"].to_numpy(),
        tiny.labels(2),
        TUNED,
        seed=0,
        precision="fp32",
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, kept[0][name]) and torch.equal(value, kept[1][name])


def test_a_model_that_cannot_tell_gets_half_of_the_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "name": "pairs",
        "kind": "minimal_pairs",
        "answer": None,
        "labels": [],
        "metric": ["accuracy"],
        "max_tokens": 20,
        "language": "en",
    }
    pairs = pd.DataFrame(
        {
            "id": ["0", "1", "2"],
            "good": ["a b", "b", "c d"],
            "bad": ["a b", "b", "c d"],
            "group": ["x", "x", "y"],
        }
    )
    found = setting("gpt", TaskData(facts, {"test": pairs}))
    rows, predictions = evaluate_runs(
        found,
        [*list_runs(tiny.asked("minimal_pairs"), ("random",), ("all",), (0, 1))],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert {(r.group, r.value) for r in rows} == {("all", 0.5), ("x", 0.5), ("y", 0.5)} and set(
        predictions["prediction"]
    ) == {"tie"}


def test_the_mean_over_pieces_is_told_beside_the_sum(tmp_path: Path) -> None:
    """A model for which every piece is as improbable as any other takes the shorter sentence by the sum, and by the mean cannot tell."""
    facts = {
        "name": "pairs",
        "kind": "minimal_pairs",
        "answer": None,
        "labels": [],
        "metric": ["accuracy"],
        "max_tokens": 20,
        "language": "en",
    }
    pairs = pd.DataFrame(
        {"id": ["0", "1"], "good": ["a", "b a"], "bad": ["a b c d", "b a c"], "group": ["x", "x"]}
    )
    found = setting("gpt", TaskData(facts, {"test": pairs}))

    def score(
        model: Encoder, reader: Tokenizer, texts: list[str], *, limit: int | None
    ) -> np.ndarray:
        words = [len(text.split()) for text in texts]
        return np.array([[-2.0 * count, count] for count in words])

    alike = dataclasses.replace(found.checkpoint.family, score_texts=score)
    found = dataclasses.replace(
        found, checkpoint=dataclasses.replace(found.checkpoint, family=alike)
    )
    rows, predictions = evaluate_runs(
        found,
        [EvalRun("random", "zero_shot")],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert {row.metric: row.value for row in rows} == {"accuracy": 1.0, "accuracy_per_piece": 0.5}
    assert predictions["correct"].tolist() == [1.0, 1.0]


def test_a_sentence_that_training_never_was_long_enough_for_is_not_scored(tmp_path: Path) -> None:
    facts = {
        "name": "pairs",
        "kind": "minimal_pairs",
        "answer": None,
        "labels": [],
        "metric": ["accuracy"],
        "max_tokens": 200,
        "language": "en",
    }
    found = setting("gpt", TaskData(facts, {}))
    assert (
        found.max_input_positions is not None
        and found.max_input_positions < found.checkpoint.architecture.max_positions
    ), "else this shows nothing"
    long = "a " * (found.max_input_positions - 1) + "a"
    task = TaskData(
        facts, {"test": pd.DataFrame({"id": ["0"], "good": [long], "bad": ["a b"], "group": ["x"]})}
    )
    (row,), _ = evaluate_runs(
        setting("gpt", task),
        [EvalRun("random", "zero_shot")],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert (
        row.status == "failed"
        and f"longer than the {found.max_input_positions}" in format_notes(row.reason)
    )
