"""A checkpoint that does not fit is refused by the name of its tensor or file, and leaves nothing half-loaded."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lineage.errors import InputError
from lineage.models import weights
from lineage.models.checkpoint import Checkpoint
from lineage.training.budget import match_parameter_budget
from tests import tiny


def saved(folder: Path, name: str = "gpt") -> Path:
    made = tiny.checkpoint(name)
    made.save(folder, made.build(tiny.CPU, load_weights=False))
    return folder


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_weights_are_as_readable_as_the_other_files(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        saved(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_what_was_saved_is_loaded_to_the_last_bit(name: str, tmp_path: Path) -> None:
    made = tiny.checkpoint(name).build(tiny.CPU, load_weights=False).state_dict()
    again = Checkpoint.load(saved(tmp_path, name)).build(tiny.CPU).state_dict()
    assert made.keys() == again.keys() and all(
        torch.equal(value, again[key]) for key, value in made.items()
    )


@pytest.mark.parametrize(("changes", "said"), [
    ({"body.blocks.1.ffn_in.bias": None}, r"model\.safetensors: the tensor body\.blocks\.1\.ffn_in\.bias is missing"),
    ({"body.blocks.1.surprise": torch.zeros(2)}, r"the tensor body\.blocks\.1\.surprise has no place"),
    ({"position_embeddings.weight": torch.zeros(3, 4)}, r"the tensor position_embeddings\.weight is of shape \(3, 4\); .* requires \("),
    ({"token_embeddings.weight": torch.zeros(7, 8)}, r"the tensor token_embeddings\.weight is of shape \(7, 8\)"),
    ({"token_embeddings.weight": 0}, r"the tensor token_embeddings\.weight is of type torch\.int64"),
    ({"token_embeddings.weight": float("nan")}, r"the tensor token_embeddings\.weight holds values that are not finite"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = saved(tmp_path) / "model.safetensors"
    kept = load_file(path)
    for name, value in changes.items():
        new = torch.full(kept[name].shape, value) if isinstance(value, int | float) else value
        kept = {key: tensor for key, tensor in (kept | {name: new}).items() if tensor is not None}
    save_file(kept, path)
    with pytest.raises(InputError, match=said):
        Checkpoint.load(tmp_path).build(tiny.CPU)


def test_a_config_or_a_vocabulary_of_other_sizes_is_refused(tmp_path: Path) -> None:
    config = json.loads((saved(tmp_path) / "config.json").read_text())
    config["architecture"]["ffn_size"] += 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"ffn_in\.weight is of shape"):
        Checkpoint.load(tmp_path).build(tiny.CPU)
    saved(tmp_path)
    tiny.reader("elmo").save(tmp_path)  # of 301 words
    with pytest.raises(
        InputError, match=r"token_embeddings\.weight is of shape \(\d+, \d+\); .* requires \(301, "
    ):
        Checkpoint.load(tmp_path).build(tiny.CPU)


def test_sizes_that_no_memory_holds_are_refused_by_the_tensor(tmp_path: Path) -> None:
    config = json.loads((saved(tmp_path) / "config.json").read_text())
    config["architecture"]["ffn_size"] = 10**11
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        InputError, match=r"ffn_in\.weight is of shape .* requires \(100000000000, "
    ):
        Checkpoint.load(tmp_path).build(tiny.CPU)


def test_widths_whose_product_cannot_be_counted_are_refused_by_the_file(tmp_path: Path) -> None:
    config = json.loads((saved(tmp_path) / "config.json").read_text())
    for value in (4 * 10**9, 4 * 10**20):
        config["architecture"] |= {"hidden_size": value, "ffn_size": value}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(
            InputError,
            match=rf"{tmp_path}/config\.json: its sizes ask for a tensor of more numbers than can be counted",
        ):
            Checkpoint.load(tmp_path).build(tiny.CPU)


@pytest.mark.parametrize("family", ["elmo", "ulmfit", "gpt", "taglm", "sa_lstm"])
def test_layers_without_end_are_refused_by_the_file(family: str, tmp_path: Path) -> None:
    rewritten(saved(tmp_path, family) / "config.json", num_layers=10**9)
    with pytest.raises(
        InputError,
        match=rf"{tmp_path}/config\.json: architecture: num_layers is 1000000000; it is at most 1,000",
    ):
        Checkpoint.load(tmp_path)


def test_a_width_of_params_whose_square_cannot_be_counted_is_refused_too() -> None:
    vast = dataclasses.replace(
        tiny.checkpoint("gpt").architecture, hidden_size=4 * 10**9, ffn_size=None
    )
    with pytest.raises(
        InputError,
        match="models: gpt: its sizes ask for a tensor of more numbers than can be counted",
    ):
        match_parameter_budget(
            tiny.checkpoint("gpt").family, vast, vocab_size=300, body_parameters=100_000
        )
    made = dataclasses.replace(
        tiny.checkpoint("gpt"), architecture=dataclasses.replace(vast, ffn_size=4 * 10**9)
    )
    with pytest.raises(InputError, match=r"models\.gpt: its sizes ask for"):
        made.build(tiny.CPU, load_weights=False)


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (saved(tmp_path) / "model.safetensors").write_bytes(
        f"cos\nsystem\n(S'touch {mark}'\ntR.".encode()
    )
    with pytest.raises(InputError, match=r"model\.safetensors: not a safetensors file"):
        Checkpoint.load(tmp_path).build(tiny.CPU)
    assert not mark.exists()


def test_a_model_keeps_its_values_where_the_last_tensor_does_not_fit(tmp_path: Path) -> None:
    inside = {"a": torch.zeros(3), "b": torch.zeros(2, 2)}
    with pytest.raises(InputError, match="the tensor b is of shape"):
        weights.load_into_model(
            nn.Module(), lambda _: inside, {"a": torch.ones(3), "b": torch.ones(4)}, tmp_path
        )
    assert not inside["a"].any()


@pytest.mark.parametrize(("file", "text", "said"), [
    ("config.json", '{"family": "gp', r"config\.json: not a JSON file: .*; correct it"),
    ("config.json", '{"model_name": "gpt"}', r"config\.json: the key 'family' is missing"),
    ("config.json", None, "no model is here; .* artifacts/pretrained"),
    ("tokenizer_config.json", "{", r"tokenizer_config\.json: not a JSON file"),
    ("tokenizer_config.json", '{"surprise": 1}', r"tokenizer_config\.json: unknown key 'surprise'"),
    ("tokenizer_config.json", "", r"tokenizer_config\.json: not a JSON file"),
    ("tokenizer_config.json", '{"tokenizer_type": "word"}', r"tokenizer_config\.json: the key 'language' is missing"),
    ("config.json", "", r"config\.json: not a JSON file"),
    ("config.json", "[]", r"config\.json: expected a mapping of keys"),
    ("tokenizer.json", "", r"tokenizer\.json: not a tokenizer"),
    ("model.safetensors", "", r"model\.safetensors: not a safetensors file"),
    ("tokenizer.json", '{"version": "1.0", "mod', r"tokenizer\.json: not a tokenizer"),
    ("tokenizer.json", None, r"tokenizer\.json: not a tokenizer"),
    ("model.safetensors", "cut", r"model\.safetensors: not a safetensors file: .*; save the model again"),
])  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, file: str, text: str | None, said: str) -> None:
    path = saved(tmp_path) / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=said):
        Checkpoint.load(tmp_path).build(tiny.CPU)


OPEN = {
    "elmo": "cell_size projection_size",
    "ulmfit": "hidden_size embedding_size",
    "gpt": "ffn_size hidden_size",
    "bert": "ffn_size hidden_size",
    "masked_lstm": "lstm_hidden_size hidden_size",
    "joined_transformer": "ffn_size hidden_size",
    "taglm": "cell_size projection_size",
    "context2vec": "hidden_size embedding_size",
    "sa_lstm": "hidden_size embedding_size",
    "seq2seq": "hidden_size",
}


def rewritten(path: Path, **values: Any) -> None:
    """The JSON file with these values in it; of config.json in its block `architecture`."""
    tree = json.loads(path.read_text())
    block = tree["architecture"] if path.name == "config.json" else tree
    block |= values
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("family", "key"), [(family, key) for family, keys in OPEN.items() for key in keys.split()]
)
def test_a_size_that_nobody_gave_is_refused_by_its_key(
    family: str, key: str, tmp_path: Path
) -> None:
    rewritten(saved(tmp_path, family) / "config.json", **{key: None})
    with pytest.raises(InputError, match=rf"{tmp_path}/config\.json: architecture\.{key} is null"):
        Checkpoint.load(tmp_path)


@pytest.mark.parametrize(("key", "value", "said"), [
    ("direction", "sideways", r"'sideways' \(str\) is not one of forward, backward"),
    ("direction", None, r"None \(NoneType\) is not one of forward, backward"),
    ("normalizer", "ftyf", r"'ftyf' \(str\) is not one of ftfy, fastai"),
    ("tokenizer_type", "words", r"'words' \(str\) is not one of word, byte_bpe"),
    ("tokenizer_type", [], r"\[\] \(list\) is not one of word, byte_bpe"),
    ("language", None, "expected a text, found None"),
    ("max_word_bytes", "x", "expected a whole number, found 'x'"),
    ("max_word_bytes", True, "expected a whole number, found True"),
    ("max_word_bytes", 1, "max_word_bytes is 1; it must be from 16"),
    ("max_word_bytes", 10**12, "max_word_bytes is 1000000000000; it must be from 16"),
    ("tokenizer_type", "pretrained", "special_token_template is missing"),
    ("special_token_template", {"pad_token_id": 0}, "tokenizer_type is 'word', and special_token_template is given"),
    ("special_token_template", {"pads": 1}, "special_token_template: unknown key 'pads'"),
    ("special_token_template", {"prefix": 3}, r"special_token_template\.prefix: expected a list"),
    ("lossless", "x", "expected true or false"),
])  # fmt: skip
def test_what_a_reader_says_of_itself_is_checked(
    key: str, value: Any, said: str, tmp_path: Path
) -> None:
    rewritten(saved(tmp_path, "ulmfit") / "tokenizer_config.json", **{key: value})
    with pytest.raises(InputError, match=said) as error:
        Checkpoint.load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/tokenizer_config.json: ") and key in str(
        error.value
    )


@pytest.mark.parametrize(("key", "value", "said"), [
    ("seed", "x", "seed: expected a whole number, found 'x'"),
    ("seed", True, "seed: expected a whole number, found True"),
    ("model_name", {}, "model_name: expected a text, found {}"),
    ("family", "berd", "family: there is no family 'berd'; did you mean 'bert'"),
    ("architecture", None, "architecture: expected a mapping of keys, found None"),
    ("surprise", 1, "unknown key 'surprise'"),
])  # fmt: skip
def test_what_a_config_says_beside_its_blocks_is_checked(
    key: str, value: Any, said: str, tmp_path: Path
) -> None:
    path = saved(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"{path}: {said}"):
        Checkpoint.load(tmp_path)


def respelt(tokenizer: dict[str, Any], how: str) -> None:
    """A tokenizer whose ids do not fit its model: a hole, one id twice, a mark gone."""
    ids = tokenizer["model"]["vocab"]
    *_, second, last = sorted(ids, key=ids.get)
    if how == "hole":
        ids[last] += 5
    elif how == "twice":
        ids[last] = ids[second]
    else:
        mark = next(mark for mark in ("[MASK]", "<|extract|>", "</S>") if mark in ids)
        ids["surprise"] = ids.pop(mark)
        tokenizer["added_tokens"] = [
            added for added in tokenizer["added_tokens"] if added["content"] != mark
        ]


@pytest.mark.parametrize("family", ["bert", "gpt", "elmo", "word2vec"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("hole", "are not 0 to"),
        ("twice", "are not 0 to"),
        ("mark", "the special token .* is missing"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(
    tmp_path: Path, family: str, how: str, said: str
) -> None:
    path = saved(tmp_path, family) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    respelt(tokenizer, how)
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match=rf"tokenizer\.json: .*{said}"):
        Checkpoint.load(tmp_path)


def test_new_words_without_the_rows_that_they_begin_as_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "ulmfit") / "model.safetensors"
    save_file(
        {name: value for name, value in load_file(path).items() if name != "softmax_bias"}, path
    )
    with pytest.raises(InputError, match=r"the tensor softmax_bias is missing"):
        Checkpoint.load(tmp_path).with_added_words(["zzz"]).build(tiny.CPU)
