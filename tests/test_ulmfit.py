"""ULMFiT starts new target words at the mean row, reads backward, and fine-tunes as published."""

import dataclasses
import functools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from lineage.artifacts import create_artifact, write_json, write_table
from lineage.config.params import AdaptationBudget
from lineage.errors import InputError
from lineage.families.ulmfit import PoolingClassifier
from lineage.methods.encoding import (
    batch_by_length,
    collate_items,
    encode_items,
    encode_word_in_context,
)
from lineage.methods.finetuning import FinetunedModel, unfreeze_layers, update_batch_norm
from lineage.networks.checkpoint import Checkpoint
from lineage.networks.static import vocab_words
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.adapt import HeldOutMetrics, adapt, find_new_words, split_target_texts
from lineage.training.objectives import regularized_lm_loss
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.pretrain import TrainOutput
from tests.helpers import tiny
from tests.helpers.trainings import ADAPT_SETTINGS, DEMO_PARAMS, build_train_context

TEXT = tiny.documents()[0]
BACKWARD = {"tokenizer": {"direction": "backward"}}


@functools.cache
def target_texts() -> tuple[str, ...]:
    """Return a target's texts with known and new words."""
    first, second, third = [
        word for word in vocab_words(tiny.tokenizer("ulmfit")) if word.isalpha()
    ][:3]
    return (
        f"Zebras {first} quokkas . Zebras {second} .",
        f"quokkas {third} zebras {first} Zebras .",
        f"quokkas ! quokkas {second} .",
    )


def trained_checkpoint(folder: Path) -> Checkpoint:
    """Return a checkpoint with weights on disk; its softmax biases differ, unlike at the start."""
    weights = folder / "model.safetensors"
    state = tiny.model("ulmfit").state_dict()
    state["softmax_bias"] = torch.randn(
        state["softmax_bias"].shape, generator=torch.Generator().manual_seed(4)
    )
    save_file(state, weights)
    return dataclasses.replace(tiny.checkpoint("ulmfit"), weights_path=weights)


def test_new_words_are_the_most_frequent_ones_missing_from_the_vocabulary() -> None:
    tokenizer = tiny.tokenizer("ulmfit")
    assert find_new_words(target_texts(), tokenizer, max_words=9, min_frequency=2) == [
        "quokkas",
        "Zebras",
    ]
    assert find_new_words(target_texts(), tokenizer, max_words=1, min_frequency=1) == ["quokkas"]
    assert find_new_words(target_texts(), tokenizer, max_words=9, min_frequency=1)[:3] == [
        "quokkas",
        "Zebras",
        "!",
    ]


def test_new_rows_are_the_mean_of_all_rows_and_old_rows_stay(tmp_path: Path) -> None:
    before = trained_checkpoint(tmp_path)
    grown = before.with_added_words(["quokkas", "Zebras"])
    old = before.build(tiny.CPU).state_dict()
    new = grown.build(tiny.CPU).state_dict()
    V = before.tokenizer.vocab_size
    assert old.keys() == new.keys() and grown.tokenizer.vocab_size == V + 2
    for name in old:
        assert torch.equal(new[name][: len(old[name])], old[name]), name
    for name in ("body.embedding_weight", "softmax_bias"):
        mean = old[name].double().mean(0)
        for row in new[name][V:]:
            torch.testing.assert_close(row.double(), mean, atol=1e-7, rtol=0)


def test_added_words_keep_the_softmax_tied_to_the_embedding(tmp_path: Path) -> None:
    model = trained_checkpoint(tmp_path).with_added_words(["quokkas"]).build(tiny.CPU)
    width = model.hidden_sizes()[-1]
    torch.testing.assert_close(
        model.logits(torch.eye(width)) - model.softmax_bias, model.body.embedding_weight.T
    )
    assert len(model.state_dict()) == len(tiny.model("ulmfit").state_dict()), (
        "there must be no second table"
    )


def test_a_tokenizer_with_added_words_encodes_other_words_as_before() -> None:
    old = tiny.tokenizer("ulmfit")
    new = old.with_added_words(["quokkas", "Zebras"])
    V = old.vocab_size
    old_ids, new_ids = old.encode(f"{TEXT} quokkas").ids, new.encode(f"{TEXT} quokkas").ids
    assert list(old_ids[:-2]) == list(new_ids[:-2])
    assert old_ids[-2] == old.special_token_ids["<unk>"]
    assert new_ids[-2] == V
    assert encode_corpus(["Zebras ."], new).ids[1] == V + 1
    with pytest.raises(AssertionError, match="already"):
        new.with_added_words(["quokkas"])


def adapt_checkpoint(checkpoint: Checkpoint, folder: Path) -> tuple[TrainOutput, HeldOutMetrics]:
    """Adapt a checkpoint to the target texts."""
    budget = AdaptationBudget(text_bytes=3000, max_epochs=100)
    params = dataclasses.replace(DEMO_PARAMS, adapt=budget)
    settings = dataclasses.replace(ADAPT_SETTINGS, learning_rate=0.02)
    context = build_train_context(folder / "resume")
    return adapt(checkpoint, settings, [*target_texts()] * 8, [*target_texts()], params, context)


def test_an_adapted_model_saves_its_tokenizer_and_learns_its_new_words(tmp_path: Path) -> None:
    before = trained_checkpoint(tmp_path)
    grown = before.with_added_words(
        find_new_words(target_texts(), before.tokenizer, max_words=9, min_frequency=2)
    )
    output, heldout = adapt_checkpoint(grown, tmp_path)
    assert output.status == "ok"
    assert heldout.after["bits_per_byte_forward"] < 0.9 * heldout.before["bits_per_byte_forward"]
    with create_artifact(tmp_path / "adapted", "model") as draft:
        grown.save(draft, output.model)
    loaded = Checkpoint.load(tmp_path / "adapted")
    assert loaded.tokenizer.vocab_size == before.tokenizer.vocab_size + 2
    assert loaded.num_new_words == 0
    for name, value in loaded.build(tiny.CPU).state_dict().items():
        assert torch.equal(value, output.model.state_dict()[name])
    rows = load_file(tmp_path / "adapted" / "model.safetensors")["body.embedding_weight"][-2:]
    assert not torch.allclose(rows[0], rows[1], atol=1e-3), "both rows started equal"
    assert (
        Checkpoint.load(tmp_path / "adapted").tokenizer.encode("quokkas").ids[1]
        == before.tokenizer.vocab_size
    )


def test_adaptation_reads_neither_test_nor_validation(tmp_path: Path) -> None:
    """Those files are unreadable. New words come from the training text, not the held-out text."""
    with create_artifact(tmp_path / "t", "task") as draft:
        write_table(
            draft / "train.parquet",
            pd.DataFrame(
                {"id": [str(i) for i in range(20)], "text": [f"word{i} word{i}" for i in range(20)]}
            ),
        )
        write_json(
            draft / "task.json", {"name": "t", "language": "en", "kind": "text_classification"}
        )
        for split in ("test", "validation"):
            (draft / f"{split}.parquet").write_bytes(b"nobody may read this")
    texts, heldout_texts = split_target_texts(tmp_path / "t", DEMO_PARAMS, max_bytes=10**6)
    new_words = find_new_words(texts, tiny.tokenizer("ulmfit"), max_words=99, min_frequency=2)
    assert len(new_words) == 18 and not {*new_words} & {text.split()[0] for text in heldout_texts}


@pytest.mark.parametrize(("name", "overrides", "message"), [
    ("elmo", {"adapt": {"new_words": {"most": 5, "min_frequency": 2}}}, "models.elmo.adapt.new_words: elmo has no table of words"),
    ("gpt", {"adapt": {"new_words": {"most": 5, "min_frequency": 2}}}, "models.gpt.adapt.new_words: gpt has no table of words"),
    ("bert", BACKWARD, "models.bert.tokenizer.direction: bert does not read words in one direction"),
    ("word2vec", BACKWARD, "models.word2vec.tokenizer.direction"),
    ("gpt", {"evaluate": {"finetune": {"bptt_window": 8}}}, "models.gpt.evaluate.finetune.bptt_window: gpt does not read"),
    ("gpt", {"evaluate": {"finetune": {"classifier_hidden_dropout": 0.1}}}, "models.gpt.evaluate.finetune.classifier_hidden_dropout: gpt has no hidden layer"),
    ("ulmfit", {"evaluate": {"finetune": {"classifier_hidden_dropout": 0.1, "pooling": "mean"}}}, "classifier_hidden_dropout belongs to the family's own classifier"),
])  # fmt: skip
def test_a_setting_that_a_family_does_not_support_is_refused(
    name: str, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tiny.model_config(name, **overrides)


# --- backward reading


def backward_tokenizer() -> Tokenizer:
    """Return the tests' tokenizer with direction backward."""
    tokenizer = tiny.tokenizer("ulmfit")
    return Tokenizer(
        tokenizer.backend_tokenizer, dataclasses.replace(tokenizer.config, direction="backward")
    )


def test_a_backward_tokenizer_reverses_ids_and_finds_the_target_word(tmp_path: Path) -> None:
    forward = tiny.tokenizer("ulmfit")
    backward = backward_tokenizer()
    forward_encoding = forward.encode(TEXT)
    backward_encoding = backward.encode(TEXT)
    assert list(forward_encoding.ids) == list(backward_encoding.ids[::-1])
    assert forward_encoding.words == backward_encoding.words[::-1]
    words = TEXT.split()
    for target in (0, 5, len(words) - 1):
        items = [
            encode_word_in_context(words, target, tokenizer, max_length=None, language="en")
            for tokenizer in (forward, backward)
        ]
        forward_positions, backward_positions = (item.word_pieces[0][:, 0] for item in items)
        assert (
            [items[0].encoded.words[position] for position in forward_positions]
            == [items[1].encoded.words[position] for position in backward_positions]
            == [words[target]]
        )
        assert list(backward_positions) == [
            len(forward_encoding.ids) - 1 - position for position in forward_positions[::-1]
        ]
    backward.save(tmp_path)
    assert Tokenizer.load(tmp_path).direction == "backward"
    assert list(Tokenizer.load(tmp_path).encode(TEXT).ids) == list(backward_encoding.ids)


def test_a_backward_corpus_holds_the_same_sentences_and_bytes() -> None:
    forward = tiny.corpus("ulmfit")
    backward = encode_corpus(tiny.documents(), backward_tokenizer())
    assert forward.text_bytes == backward.text_bytes
    assert np.array_equal(forward.document_starts, backward.document_starts)
    for start, stop in zip(forward.document_starts[:-1], forward.document_starts[1:], strict=True):
        assert np.array_equal(forward.ids[start:stop][::-1], backward.ids[start:stop])
        assert np.array_equal(
            forward.byte_counts[start:stop][::-1], backward.byte_counts[start:stop]
        )
        starts = [
            corpus.sentence_starts[
                (corpus.sentence_starts >= start) & (corpus.sentence_starts < stop)
            ]
            - start
            for corpus in (forward, backward)
        ]
        ends = [*starts[0][1:], stop - start]
        assert sorted(int(stop - start - end) for end in ends) == list(starts[1])


def test_a_backward_model_predicts_the_previous_word() -> None:
    config = tiny.model_config("ulmfit", **BACKWARD)
    tokenizer = backward_tokenizer()
    corpus = encode_corpus([TEXT] * 4, tokenizer)
    sampler = config.family.batch_sampler(
        corpus,
        tokenizer,
        dataclasses.replace(config.pretrain, batch_size=1, variable_bptt=False),
        seed=1,
    )
    sampler.set_epoch(0)
    batch = sampler.get_batch(1)
    assert batch.targets_BT is not None and batch.is_backward
    pairs = set(
        zip(
            tiny.tokenizer("ulmfit").encode(TEXT).ids[1:].tolist(),
            tiny.tokenizer("ulmfit").encode(TEXT).ids[:-1].tolist(),
            strict=True,
        )
    )
    assert {*zip(batch.ids_BT[0].tolist(), batch.targets_BT[0].tolist(), strict=True)} <= pairs
    output = regularized_lm_loss(tiny.model("ulmfit"), batch)
    assert [*output.nats] == [*output.target_counts] == ["backward"], (
        "bits per byte are reported apart from forward ones"
    )


def test_a_backward_state_depends_on_later_words_and_pools_at_the_text_start() -> None:
    model = tiny.model("ulmfit").eval()
    tokenizer = backward_tokenizer()
    words = TEXT.split()[:12]
    changed = ["." if words[0] != "." else "a", *words[1:]]
    original, modified = (tokenizer.encode(" ".join(text_words)) for text_words in (words, changed))
    states, modified_states = (
        model.encode(tokenizer.collate([encoded]))[-1][0] for encoded in (original, modified)
    )
    position = next(
        position
        for position, (start, end) in enumerate(original.offsets)
        if start < len(words[0]) and end > 0
    )
    assert torch.equal(states[:position], modified_states[:position])
    assert not torch.allclose(states[position], modified_states[position])
    batch = tokenizer.collate([original, tokenizer.encode(words[3])])
    pooled = model.pool(model.encode(batch), batch)
    width = model.hidden_sizes()[-1]
    torch.testing.assert_close(pooled[0, :width], states[-1])
    assert original.offsets[-2][0] == 0, "only the special token before the first word follows it"


def test_backward_scores_sum_log_probabilities_given_the_later_words() -> None:
    model = tiny.model("ulmfit").eval()
    tokenizer = backward_tokenizer()
    family = tiny.model_config("ulmfit").family
    texts = [" ".join(TEXT.split()[:n]) for n in (4, 9)]
    scores = family.score_texts(model, tokenizer, texts, limit=None)[:, 0]
    for text, score in zip(texts, scores, strict=True):
        ids = tiny.tokenizer("ulmfit").encode(text).ids[::-1].copy()
        outputs, _, _ = model.run_layers(torch.from_numpy(ids)[None], None)
        log_probs = torch.log_softmax(model.logits(outputs[-1][0]), -1)
        assert score == pytest.approx(
            sum(
                float(log_probs[position - 1, ids[position]].detach())
                for position in range(1, len(ids))
            ),
            rel=1e-5,
        )


def test_batch_norm_statistics_cover_all_training_items_together() -> None:
    """A mean over batches would differ: they group texts by length, and long texts vary less."""
    tokenizer = tiny.tokenizer("ulmfit")
    rng = np.random.default_rng(0)
    words = [word for word in tokenizer.backend_tokenizer.get_vocab() if word.isalpha()]
    items = encode_items(
        pd.DataFrame(
            {
                "text": [
                    " ".join(rng.choice(words, num_words)) for num_words in rng.integers(2, 80, 150)
                ]
            }
        ),
        tokenizer,
        max_length=None,
        language="en",
    )
    settings = tiny.model_config("ulmfit").evaluate.finetune
    model = FinetunedModel(
        tiny.model("ulmfit"), tiny.label_answer(2), settings, seed=0, example_item=items[0]
    )
    update_batch_norm(model, tokenizer, items, precision="fp32")
    batches = batch_by_length(items)
    assert len(batches) > 1, "there must be several batches"
    with torch.no_grad():
        pooled = torch.cat(
            [
                model.pooled_vectors(collate_items(tokenizer, [items[i] for i in indices]))[0]
                for indices in batches
            ]
        )
    assert isinstance(model.head, PoolingClassifier)
    torch.testing.assert_close(
        model.head.input_norm.running_var, pooled.var(0), rtol=1e-4, atol=1e-9
    )
    torch.testing.assert_close(
        model.head.input_norm.running_mean, pooled.mean(0), rtol=1e-4, atol=1e-6
    )


def build_classifier(**overrides: Any) -> PoolingClassifier:
    """Return the classifier head of a model fine-tuned with these settings."""
    item = encode_items(
        pd.DataFrame({"text": [TEXT]}), tiny.tokenizer("ulmfit"), max_length=None, language="en"
    )[0]
    settings = dataclasses.replace(tiny.model_config("ulmfit").evaluate.finetune, **overrides)
    head = FinetunedModel(
        tiny.model("ulmfit"), tiny.label_answer(2), settings, seed=0, example_item=item
    ).head.train()
    assert isinstance(head, PoolingClassifier)
    return head


@pytest.mark.parametrize(("overrides", "shares"), [
    ({"dropout": 0.5}, (0.5, 0.5)), ({"dropout": 0.5, "classifier_hidden_dropout": 0.0}, (0.5, 0.0)), ({"dropout": 0.0, "classifier_hidden_dropout": 0.25}, (0.0, 0.25)),
])  # fmt: skip
def test_classifier_hidden_dropout_sets_the_dropout_before_the_output_layer(
    overrides: dict[str, float], shares: tuple[float, float]
) -> None:
    head = build_classifier(**overrides)
    inputs = dict[str, torch.Tensor]()
    for name in ("hidden_layer", "output_layer"):
        getattr(head, name).register_forward_pre_hook(
            lambda _, arguments, name=name: inputs.__setitem__(name, arguments[0])
        )
    torch.manual_seed(1)
    head(torch.randn(400, head.hidden_layer.in_features))
    for name, share in zip(("hidden_layer", "output_layer"), shares, strict=True):
        assert float((inputs[name] == 0).float().mean()) == pytest.approx(share, abs=0.05), name


@pytest.mark.parametrize(("epochs", "share"), [(5, 0.8), (5, 0.4), (10, 0.3), (7, 1.0), (3, 1.0)])
def test_each_layer_unfreezes_at_its_exact_step(epochs: int, share: float) -> None:
    layers = [[torch.nn.Parameter(torch.zeros(1))] for _ in range(5)]
    optimizer = build_adamw(build_param_groups(layers, weight_decay=0.0))
    steps = 20 * epochs
    unfreeze_steps = list[int]()
    for step in range(steps + 1):
        unfreeze_layers(optimizer, Fraction(step, steps), share)
        unfreeze_steps += [step] * (
            sum(layer[0].requires_grad for layer in layers) - len(unfreeze_steps)
        )
    last_step = 2 * epochs * round(10 * share)  # the step at which all layers are unfrozen
    assert unfreeze_steps == [-(-last_step * depth // 4) for depth in range(5)]
