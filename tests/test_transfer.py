"""Transfer keeps frozen weights, computes shared features once, and never trains on test items."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lineage.data.task_data import TaskData
from lineage.methods import finetuning, frozen_features
from lineage.methods.encoder import EvalRun
from lineage.methods.encoding import collate_items, encode_word_in_context
from lineage.methods.finetuning import FinetuneMethod, unfreeze_layers
from lineage.methods.saved import read_record
from lineage.networks.weights import WEIGHTS_FILE
from lineage.report.notes import format_notes
from lineage.results import results_frame
from lineage.training.optimizers import build_adamw, build_param_groups
from tests.helpers import tiny
from tests.helpers.first_word import FINETUNE, build_context
from tests.helpers.fitting import finetune, predict_finetuned


def test_batch_norm_uses_the_statistics_of_the_training_items(task: TaskData) -> None:
    """A few steps on a hundred labels do not settle running statistics.

    A random-init encoder, whose features hardly vary, would then be classified by noise.
    """
    tokenizer = tiny.tokenizer("ulmfit")
    items = tiny.encode("ulmfit", task.splits["train"], max_length=20)
    settings = FinetuneMethod(**{**vars(FINETUNE), "epochs": 1, "dropout": 0.0})
    model = finetune(
        tiny.model("ulmfit"),
        tokenizer,
        items,
        task.splits["train"]["label"].to_numpy(),
        tiny.label_answer(2),
        settings,
        seed=3,
    )
    actual = predict_finetuned(model, tokenizer, items)
    model.train()
    model.encoder.eval()
    with torch.no_grad():
        expected = torch.softmax(model(collate_items(tokenizer, items)).double(), -1).numpy()
    np.testing.assert_allclose(actual, expected, atol=0.01)


@pytest.mark.parametrize(
    "name",
    [
        *("elmo", "ulmfit", "gpt", "bert", *tiny.STATIC),
        *tiny.mark_slow(["context2vec", "sa_lstm", "taglm", "seq2seq", *tiny.CELLS]),
    ],
)
def test_finetuning_learns_and_is_deterministic(name: str, task: TaskData) -> None:
    tokenizer = tiny.tokenizer(name)
    train_items = tiny.encode(name, task.splits["train"], max_length=20)
    labels = task.splits["train"]["label"].to_numpy()
    # A mean of words moves slowly. ELMo's convolutions start near zero: at 0.005 it learned with
    # one seed of eight, at 0.02 with all.
    learning_rates = dict.fromkeys((*tiny.STATIC, "context2vec"), 0.05) | {"elmo": 0.02}
    learning_rate = learning_rates.get(name, 0.005)

    def finetuned_scores(epochs: int) -> np.ndarray:
        settings = FinetuneMethod(
            **{**vars(FINETUNE), "epochs": epochs, "learning_rate": learning_rate}
        )
        model = finetune(
            tiny.model(name), tokenizer, train_items, labels, tiny.label_answer(2), settings, seed=3
        )
        return predict_finetuned(model, tokenizer, train_items)

    assert (finetuned_scores(25).argmax(1) == labels).mean() > 0.9
    np.testing.assert_array_equal(finetuned_scores(1), finetuned_scores(1))


def test_frozen_layers_stay_bit_identical_and_unfreeze_from_the_top() -> None:
    model = tiny.model("bert")
    groups = model.layer_groups()
    before = [[parameter.detach().clone() for parameter in group] for group in groups]
    optimizer = build_adamw(build_param_groups(groups, weight_decay=0.1))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    batch = tiny.tokenizer("bert").collate(tiny.tokenizer("bert").encode_batch(["a b c", "b d"]))
    is_changed = []
    for progress in (Fraction(0), Fraction(1, 4), Fraction(1, 2)):
        unfreeze_layers(optimizer, progress, 0.5)
        optimizer.zero_grad(set_to_none=True)
        model.pool(model.encode(batch), batch).sum().backward()
        optimizer.step()
        is_changed.append(
            [
                not all(
                    torch.equal(old_value, new_value)
                    for old_value, new_value in zip(old_group, group, strict=True)
                )
                for old_group, group in zip(before, groups, strict=True)
            ]
        )
    assert is_changed == [[False, False, True], [False, True, True], [True, True, True]]


@pytest.mark.parametrize("name", [*tiny.TRAINED, *tiny.STATIC])
def test_the_target_word_is_found_in_a_long_context(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    words = tiny.documents()[0].split()[:90]
    for target in (0, 3, 44, 89):
        item = encode_word_in_context(words, target, tokenizer, max_length=16, language="en")
        assert len(item.encoded.ids) <= 16
        ids = item.encoded.ids[item.word_pieces[0][:, 0]]
        alone = tokenizer.encode(words[target])
        assert list(ids) == list(alone.ids[alone.offsets[:, 1] > 0])


def test_evaluations_run_once_and_share_features(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    extract_features = frozen_features.extract_features

    def counting_extract_features(*arguments: Any, **keywords: Any) -> Any:
        calls.append("features")
        return extract_features(*arguments, **keywords)

    monkeypatch.setattr(frozen_features, "extract_features", counting_extract_features)
    context = build_context("gpt", task)
    runs = [
        run
        for run in tiny.list_runs(
            tiny.task_info("text_classification"), ("random",), (20, "all"), (0, 1)
        )
        if run.method.endswith("_probe") or run.label_count == 20
    ]
    rows, predictions, *_ = tiny.evaluate_runs(context, runs, tmp_path)
    assert calls == ["features"] * 3, "one pass per split, for all label counts and seeds"
    modification_times = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    cached_rows, *_ = tiny.evaluate_runs(context, runs, tmp_path)
    assert modification_times == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert results_frame(rows).equals(results_frame(cached_rows))
    frame = results_frame(rows)
    assert set(frame["train_examples"]) == {20, 60}
    assert set(frame["metric"]) == {"accuracy", "macro_f1"}
    assert set(frame["split"]) == {"validation", "test"}
    own = "split == 'test' and transfer == 'frozen' and label_count == 'all' and finetune_seed == 1"
    own_predictions = predictions.query(own)
    values = frame.query(own).set_index("metric")["value"]
    assert len(own_predictions) == 29
    assert own_predictions["correct"].mean() == pytest.approx(values["accuracy"])


def test_a_non_finite_result_is_a_failed_row_and_the_others_continue(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = finetuning.predict_finetuned

    def predict_nan(model: Any, *arguments: Any, **keywords: Any) -> np.ndarray:
        return predict(model, *arguments, **keywords) * np.nan

    monkeypatch.setattr(finetuning, "predict_finetuned", predict_nan)
    rows, *_ = tiny.evaluate_runs(
        build_context("gpt", task),
        [EvalRun("random", "finetune", 20, 0), EvalRun("random", "linear_probe", 20, 0)],
        tmp_path,
    )
    assert {(row.transfer, row.status) for row in rows} == {
        ("finetuned", "failed"),
        ("frozen", "ok"),
    }
    assert "not finite" in next(format_notes(row.reason) for row in rows if row.status == "failed")


def test_a_failed_pretraining_still_has_its_random_init_baseline(
    task: TaskData, tmp_path: Path
) -> None:
    context = dataclasses.replace(
        build_context("gpt", task), failure_reason="the loss is nan at step 5"
    )
    rows, predictions, *_ = tiny.evaluate_runs(
        context,
        [EvalRun("pretrained", "linear_probe", 20, 0), EvalRun("random", "linear_probe", 20, 0)],
        tmp_path,
    )
    assert {(row.init, row.status) for row in rows} == {("pretrained", "failed"), ("random", "ok")}
    assert set(predictions["init"]) == {"random"}


def test_inputs_are_truncated_to_the_positions_seen_in_training(task: TaskData) -> None:
    context = build_context("gpt", task)
    assert context.max_input_positions == min(
        context.checkpoint.architecture.max_positions, context.checkpoint.pretrain.seq_len
    )
    assert all(
        len(item.encoded.ids) <= context.max_input_positions for item in context.items["train"]
    )
    assert 0 < context.truncated_share("train") <= 1


def test_saved_models_have_the_first_seed_and_each_label_count_even_after_a_kill(
    task: TaskData, tmp_path: Path
) -> None:
    context = build_context("gpt", task)
    runs = [
        *tiny.list_runs(
            tiny.task_info("text_classification"),
            ("random",),
            (20, "all"),
            (0, 1),
            method="finetune",
        )
    ]
    (tmp_path / "killed").mkdir()
    tiny.evaluate_runs(context, runs[:1], tmp_path / "killed")
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir(exist_ok=True)
        tiny.evaluate_runs(context, runs, tmp_path / folder)
    saved_weights = []
    for folder in ("whole", "killed"):
        systems = {
            read_record(path).label_count: path for path in (tmp_path / folder).glob("*/system")
        }
        assert set(systems) == {"20", "all"}
        assert {read_record(path).finetune_seed for path in systems.values()} == {0}
        saved_weights.append(load_file(systems["all"] / WEIGHTS_FILE))
    train_items = tiny.encode("gpt", task.splits["train"], max_length=context.max_input_positions)
    model = finetune(
        tiny.model("gpt"),
        tiny.tokenizer("gpt"),
        train_items,
        task.splits["train"]["label"].to_numpy(),
        tiny.label_answer(2),
        FINETUNE,
        seed=0,
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved_weights[0][name])
        assert torch.equal(value, saved_weights[1][name])
