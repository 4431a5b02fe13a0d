"""A checkpoint that does not fit is rejected by the name of its tensor or file.

Nothing is left half-loaded.
"""

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
from lineage.networks import weights
from lineage.networks.checkpoint import Checkpoint
from lineage.training.budget import match_parameter_budget
from tests.helpers import tiny


def save_checkpoint(folder: Path, name: str = "gpt") -> Path:
    checkpoint = tiny.checkpoint(name)
    checkpoint.save(folder, checkpoint.build(tiny.CPU, load_weights=False))
    return folder


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_weights_have_the_same_file_permissions_as_the_other_files(
    mask: int, tmp_path: Path
) -> None:
    old_mask = os.umask(mask)
    try:
        save_checkpoint(tmp_path)
    finally:
        os.umask(old_mask)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_a_saved_model_is_loaded_bit_for_bit(name: str, tmp_path: Path) -> None:
    saved = tiny.checkpoint(name).build(tiny.CPU, load_weights=False).state_dict()
    loaded = Checkpoint.load(save_checkpoint(tmp_path, name)).build(tiny.CPU).state_dict()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(value, loaded[key]) for key, value in saved.items())


@pytest.mark.parametrize(("changes", "message"), [
    ({"body.blocks.1.ffn_in.bias": None}, r"model\.safetensors: the tensor body\.blocks\.1\.ffn_in\.bias is missing"),
    ({"body.blocks.1.surprise": torch.zeros(2)}, r"the tensor body\.blocks\.1\.surprise has no place"),
    ({"position_embeddings.weight": torch.zeros(3, 4)}, r"the tensor position_embeddings\.weight is of shape \(3, 4\); .* requires \("),
    ({"token_embeddings.weight": torch.zeros(7, 8)}, r"the tensor token_embeddings\.weight is of shape \(7, 8\)"),
    ({"token_embeddings.weight": 0}, r"the tensor token_embeddings\.weight is of type torch\.int64"),
    ({"token_embeddings.weight": float("nan")}, r"the tensor token_embeddings\.weight holds values that are not finite"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_rejected_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = save_checkpoint(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    for name, value in changes.items():
        if value is None:
            del tensors[name]
        elif isinstance(value, int | float):
            tensors[name] = torch.full(tensors[name].shape, value)
        else:
            tensors[name] = value
    save_file(tensors, path)
    with pytest.raises(InputError, match=message):
        Checkpoint.load(tmp_path).build(tiny.CPU)


def test_a_tokenizer_of_another_size_is_rejected(tmp_path: Path) -> None:
    tiny.tokenizer("elmo").save(save_checkpoint(tmp_path))  # It has 301 words.
    message = r"token_embeddings\.weight is of shape \(\d+, \d+\); .* requires \(301, "
    with pytest.raises(InputError, match=message):
        Checkpoint.load(tmp_path).build(tiny.CPU)


def test_a_width_with_an_overflowing_square_in_params_is_rejected_too() -> None:
    architecture = dataclasses.replace(
        tiny.checkpoint("gpt").architecture, hidden_size=4 * 10**9, ffn_size=None
    )
    with pytest.raises(
        InputError,
        match="models: gpt: its sizes ask for a tensor of more numbers than can be counted",
    ):
        match_parameter_budget(
            tiny.checkpoint("gpt").family, architecture, vocab_size=300, body_parameters=100_000
        )
    checkpoint = dataclasses.replace(
        tiny.checkpoint("gpt"), architecture=dataclasses.replace(architecture, ffn_size=4 * 10**9)
    )
    with pytest.raises(InputError, match=r"models\.gpt: its sizes ask for"):
        checkpoint.build(tiny.CPU, load_weights=False)


def test_a_pickle_is_rejected_and_not_executed(tmp_path: Path) -> None:
    executed_marker = tmp_path / "ran"
    (save_checkpoint(tmp_path) / "model.safetensors").write_bytes(
        f"cos\nsystem\n(S'touch {executed_marker}'\ntR.".encode()
    )
    with pytest.raises(InputError, match=r"model\.safetensors: not a safetensors file"):
        Checkpoint.load(tmp_path).build(tiny.CPU)
    assert not executed_marker.exists()


def test_a_model_keeps_its_values_if_the_last_tensor_does_not_fit(tmp_path: Path) -> None:
    own_tensors = {"a": torch.zeros(3), "b": torch.zeros(2, 2)}
    with pytest.raises(InputError, match="the tensor b is of shape"):
        weights.load_into_model(
            nn.Module(), lambda _: own_tensors, {"a": torch.ones(3), "b": torch.ones(4)}, tmp_path
        )
    assert not own_tensors["a"].any()


@pytest.mark.parametrize(("file", "text", "message"), [
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
def test_a_damaged_file_is_rejected_by_name(
    tmp_path: Path, file: str, text: str | None, message: str
) -> None:
    path = save_checkpoint(tmp_path) / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        Checkpoint.load(tmp_path).build(tiny.CPU)


SIZE_KEYS = {
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


def set_json_values(path: Path, **values: Any) -> None:
    """Set values of a JSON file; those of config.json are in its block `architecture`."""
    tree = json.loads(path.read_text())
    block = tree["architecture"] if path.name == "config.json" else tree
    block |= values
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(("family", "sizes", "message"), [
    ("gpt", {"ffn_size": 7}, r"ffn_in\.weight is of shape"),
    ("gpt", {"ffn_size": 10**11}, r"ffn_in\.weight is of shape .* requires \(100000000000, "),
    ("gpt", {"hidden_size": 4 * 10**9, "ffn_size": 4 * 10**9}, r"config\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ("gpt", {"hidden_size": 4 * 10**20}, r"config\.json: architecture\.hidden_size: expected a whole number from -9,223,"),
    *((family, {"num_layers": 10**9}, r"config\.json: architecture: num_layers is 1000000000; it is at most 1,000") for family in ("elmo", "ulmfit", "gpt", "taglm", "sa_lstm")),
    *((family, {key: None}, rf"config\.json: architecture\.{key} is null") for family, keys in SIZE_KEYS.items() for key in keys.split()),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_rejected_by_tensor_or_key(
    family: str, sizes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    set_json_values(save_checkpoint(tmp_path, family) / "config.json", **sizes)
    with pytest.raises(InputError, match=rf"^{tmp_path}/.*{message}"):
        Checkpoint.load(tmp_path).build(tiny.CPU)


@pytest.mark.parametrize(("key", "value", "message"), [
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
def test_values_of_tokenizer_config_are_checked(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    set_json_values(save_checkpoint(tmp_path, "ulmfit") / "tokenizer_config.json", **{key: value})
    with pytest.raises(InputError, match=message) as error:
        Checkpoint.load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/tokenizer_config.json: ")
    assert key in str(error.value)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("seed", "x", "seed: expected a whole number, found 'x'"),
    ("seed", True, "seed: expected a whole number, found True"),
    ("model_name", {}, "model_name: expected a text, found {}"),
    ("family", "berd", "family: there is no family 'berd'; did you mean 'bert'"),
    ("architecture", None, "architecture: expected a mapping of keys, found None"),
    ("surprise", 1, "unknown key 'surprise'"),
])  # fmt: skip
def test_values_of_config_outside_its_blocks_are_checked(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    path = save_checkpoint(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"{path}: {message}"):
        Checkpoint.load(tmp_path)


def break_vocabulary(tokenizer: dict[str, Any], defect: str) -> None:
    """Make the ids of a tokenizer unfit for its model.

    An id is skipped, an id occurs twice, or a special token is missing.
    """
    ids = tokenizer["model"]["vocab"]
    *_, second, last = sorted(ids, key=ids.get)
    if defect == "hole":
        ids[last] += 5
    elif defect == "twice":
        ids[last] = ids[second]
    else:
        special_token = next(
            special_token
            for special_token in ("[MASK]", "<|extract|>", "</S>")
            if special_token in ids
        )
        ids["surprise"] = ids.pop(special_token)
        tokenizer["added_tokens"] = [
            added for added in tokenizer["added_tokens"] if added["content"] != special_token
        ]


@pytest.mark.parametrize("family", ["bert", "gpt", "elmo", "word2vec"])
@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("hole", "are not 0 to"),
        ("twice", "are not 0 to"),
        ("mark", "the special token .* is missing"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_rejected(
    tmp_path: Path, family: str, defect: str, message: str
) -> None:
    path = save_checkpoint(tmp_path, family) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    break_vocabulary(tokenizer, defect)
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match=rf"tokenizer\.json: .*{message}"):
        Checkpoint.load(tmp_path)


def test_added_words_are_rejected_if_the_rows_they_copy_are_missing(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, "ulmfit") / "model.safetensors"
    tensors = load_file(path)
    del tensors["softmax_bias"]
    save_file(tensors, path)
    with pytest.raises(InputError, match=r"the tensor softmax_bias is missing"):
        Checkpoint.load(tmp_path).with_added_words(["zzz"]).build(tiny.CPU)
