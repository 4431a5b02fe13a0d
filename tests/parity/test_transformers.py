"""GPT-1, GPT-2 and BERT read and write the folders of `transformers`.

That they compute what it computes is tested in test_live_transformers.py.
"""

import dataclasses
import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lineage.errors import InputError
from lineage.families import gpt
from lineage.formats import huggingface
from lineage.networks.base import Encoder
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.train import train_tokenizer
from tests.helpers import tiny
from tests.helpers.golden import golden_folder, golden_tensors

assert_close = functools.partial(torch.testing.assert_close, atol=3e-5, rtol=0.0)
NAMES = ("gpt1", "gpt2", "bert")


def build_our_model(name: str) -> tuple[Encoder, Tokenizer]:
    """Return an untrained model and its tokenizer.

    The library's class of this name can hold the model.
    """
    family = "bert" if name == "bert" else "gpt"
    if name != "gpt1":
        model = tiny.model(family, architecture={"norm_first": name == "gpt2"})
        return model, tiny.tokenizer(family)
    # The library's GPT-1 has no other ratio of ffn_size to hidden_size.
    config = dataclasses.replace(tiny.checkpoint("gpt").architecture, hidden_size=24, ffn_size=96)
    model = gpt.GPTModel(config, vocab_size=tiny.tokenizer("gpt").vocab_size)
    model.init_weights(torch.Generator().manual_seed(4))
    return model, tiny.tokenizer("gpt")


TEXTS = ["the bank , of the river .", "zebra", *tiny.documents()[0].split(" . ")[:2]]


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_our_models_load_in_transformers_and_give_equal_outputs(name: str, tmp_path: Path) -> None:
    model, tokenizer = build_our_model(name)
    huggingface.write_hf_folder(model.eval(), tokenizer, tmp_path)
    hf_model, loading_info = transformers.AutoModelForPreTraining.from_pretrained(
        tmp_path, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not loading_info[kind], loading_info
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    hf_tokenizer.padding_side = "right"
    (pair,) = encode_pairs(tokenizer, TEXTS[:1], TEXTS[2:3])
    inputs = hf_tokenizer(TEXTS[0], TEXTS[2], return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == pair.ids.tolist()
    assert ("token_type_ids" in inputs) == (name == "bert")
    pair_batch = tokenizer.collate([pair])
    if pair.token_type_ids is not None:
        segment_ids_BT = torch.from_numpy(pair.token_type_ids)[None]
        pair_batch = dataclasses.replace(pair_batch, segment_ids_BT=segment_ids_BT)
    hf_top = hf_model.eval()(**inputs, output_hidden_states=True).hidden_states[-1]
    assert_close(model.encode(pair_batch)[-1][pair_batch.mask_BT], hf_top[0])
    batch = tokenizer.collate([tokenizer.encode(text) for text in TEXTS])
    inputs = hf_tokenizer(TEXTS, return_tensors="pt", padding=True)
    assert torch.equal(inputs["attention_mask"].bool(), batch.mask_BT)
    assert torch.equal(inputs["input_ids"][batch.mask_BT], batch.ids_BT[batch.mask_BT])
    out = hf_model.eval()(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        output_hidden_states=True,
    )
    layers = model.encode(batch)
    assert len(layers) == len(out.hidden_states)
    for layer, hf_layer in zip(layers, out.hidden_states, strict=True):
        assert_close(layer[batch.mask_BT], hf_layer[batch.mask_BT])
    logits = out.prediction_logits if name == "bert" else out.logits
    actual_logits = model.logits(layers[-1])
    assert_close(actual_logits[batch.mask_BT], logits[batch.mask_BT])


@torch.inference_mode()
def test_modern_gpt_loads_as_nanochat_with_equal_outputs_and_is_read_back(tmp_path: Path) -> None:
    model, tokenizer = tiny.model("gpt_modern").eval(), tiny.tokenizer("gpt_modern")
    huggingface.write_hf_folder(model, tokenizer, tmp_path)
    hf_model, loading_info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not loading_info[kind], loading_info
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    hf_tokenizer.padding_side = "right"
    batch = tokenizer.collate([tokenizer.encode(text) for text in TEXTS])
    inputs = hf_tokenizer(TEXTS, return_tensors="pt", padding=True)
    assert torch.equal(inputs["input_ids"][batch.mask_BT], batch.ids_BT[batch.mask_BT])
    logits = hf_model.eval()(**inputs).logits
    assert_close(model.logits(model.encode(batch)[-1])[batch.mask_BT], logits[batch.mask_BT])
    again = huggingface.read_hf_folder(tmp_path)
    assert vars(again.config) == vars(model.config)  # type: ignore[arg-type]
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final_logit_softcapping": 15.0}, "final_logit_softcapping is 15.0; only None"),
        ({"final_logit_softcapping": ...}, "the key 'final_logit_softcapping' is missing"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1; only as many"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "rope_theta is not 10000"),
    ],
)
def test_another_nanochat_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    huggingface.write_hf_folder(tiny.model("gpt_modern"), tiny.tokenizer("gpt_modern"), tmp_path)
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    with pytest.raises(InputError, match=message):
        huggingface.read_hf_folder(tmp_path)


@pytest.mark.parametrize("name", ["bert_modern", "gpt_bert"])
def test_a_modern_transformer_of_both_sides_is_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reads both sides has no class in transformers"):
        huggingface.write_hf_folder(tiny.model(name), tiny.tokenizer(name), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
def test_generated_text_begins_and_ends_with_the_document_separator(
    name: str, tmp_path: Path
) -> None:
    model, tokenizer = build_our_model(name)
    huggingface.write_hf_folder(model, tokenizer, tmp_path)
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    generated = hf_model.generate(max_new_tokens=4, do_sample=False)[0].tolist()
    separator = tokenizer.special_token_ids["<|endoftext|>"]
    assert generated[0] == separator and (len(generated) == 5 or separator in generated[1:])


@pytest.mark.parametrize(
    ("family", "class_name", "lowercase"),
    [
        ("bert", "BertTokenizer", False),
        ("bert", "BertTokenizer", True),
        ("gpt", "GPT2Tokenizer", False),
    ],
)  # GPT2Tokenizer has no option for lowercase; AutoTokenizer reads it.
def test_a_tokenizer_loaded_by_its_class_gives_the_same_ids(
    family: str, class_name: str, lowercase: bool, tmp_path: Path
) -> None:
    text = "The Bank and the Café of the RIVER."
    model = tiny.model_config(family, tokenizer={"lowercase": lowercase})
    tokenizer = train_tokenizer(
        [*tiny.documents(), text],
        model.tokenizer,
        tokenizer_type=model.tokenizer_type,
        language="en",
    )
    config = dataclasses.replace(tiny.checkpoint(family).architecture, norm_first=family != "bert")
    huggingface.write_hf_folder(
        model.family.build(config, vocab_size=tokenizer.vocab_size), tokenizer, tmp_path
    )
    assert (
        getattr(transformers, class_name).from_pretrained(tmp_path)(text)["input_ids"]
        == tokenizer.encode(text).ids.tolist()
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_written_folder_is_read_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, tokenizer = build_our_model(name)
    huggingface.write_hf_folder(model, tokenizer, tmp_path)
    again = huggingface.read_hf_folder(tmp_path)
    assert vars(again.config) == vars(model.config)  # type: ignore[arg-type]
    for (key, value), (key_again, value_again) in zip(
        model.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert key == key_again and torch.equal(value, value_again)


@pytest.mark.parametrize("name", NAMES)
def test_files_with_older_tensor_names_and_unused_buffers_are_read(
    name: str, tmp_path: Path
) -> None:
    """The files of gpt2 and bert-base-uncased on the Hub are such files.

    They have no prefix, causal masks, TensorFlow's names for a norm, and tied weights twice.
    """
    shutil.copytree(golden_folder(name) / "hf", tmp_path / "hf")
    tensors = golden_tensors(name, "weights.safetensors")
    assert {*tensors} > {*load_file(tmp_path / "hf" / "model.safetensors")}, (
        "tied weights are not stored twice, so no copy is tested"
    )
    prefix = {"bert": "bert.", "gpt1": "transformer.", "gpt2": "transformer."}[name]
    bare = {}
    for key, value in tensors.items():
        renamed = re.sub("LayerNorm.weight$", "LayerNorm.gamma", key.removeprefix(prefix))
        bare[re.sub("LayerNorm.bias$", "LayerNorm.beta", renamed)] = value
    bare |= {
        "gpt2": {"h.0.attn.bias": torch.ones(1, 1, 4, 4)},
        "bert": {"embeddings.position_ids": torch.arange(4)[None]},
    }.get(name, {})
    save_file(bare, tmp_path / "hf" / "model.safetensors")
    expected = huggingface.read_hf_folder(golden_folder(name) / "hf").state_dict()
    actual = huggingface.read_hf_folder(tmp_path / "hf").state_dict()
    assert all(torch.equal(value, actual[key]) for key, value in expected.items())


def write_changed_folder(
    folder: Path, tensors: dict[str, Any] | None = None, **config_changes: Any
) -> Path:
    """Write a GPT-1 folder with changed tensors and config values, and return it.

    A value of None removes the tensor or the key.
    """
    huggingface.write_hf_folder(*build_our_model("gpt1"), folder)
    config = json.loads((folder / "config.json").read_text()) | config_changes
    kept_config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept_config))
    kept_tensors = load_file(folder / "model.safetensors") | (tensors or {})
    save_file(
        {k: v for k, v in kept_tensors.items() if v is not None}, folder / "model.safetensors"
    )
    return folder


@pytest.mark.parametrize(("tensors", "config_changes", "message"), [
    ({"transformer.h.0.ln_1.bias": None}, {}, r"transformer\.h\.0\.ln_1\.bias is missing"),
    ({"transformer.h.0.surprise": torch.zeros(2)}, {}, r"transformer\.h\.0\.surprise has no place"),
    ({"transformer.tokens_embed.weight": torch.zeros(3, 4)}, {}, r"tokens_embed\.weight is of shape \(3, 4\)"),
    ({}, {"vocab_size": 7}, r"tokens_embed\.weight is of shape .* requires \(7, "),
    ({}, {"vocab_size": 10**12}, r"tokens_embed\.weight is of shape .* requires \(1000000000000, "),  # before memory is allocated
    ({}, {"n_embd": 4 * 10**9}, r"config\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ({}, {"n_layer": 5}, r"transformer\.h\.2\..* is missing"),
    ({}, {"n_embd": None}, "the key 'n_embd' is missing"),
    ({}, {"vocab_size": None}, "the key 'vocab_size' is missing"),
    ({}, {"vocab_size": -1}, "vocab_size is -1; it is a whole number above zero"),
    ({}, {"model_type": "bart"}, "model_type is 'bart'; did you mean 'bert'"),
    ({}, {"afn": "swish"}, "afn is 'swish'"),
    ({}, {"n_head": 5}, "n_embd, 24, is not a multiple of n_head, 5"),
    ({}, {"model_type": ["bert"]}, r"model_type is '\['bert'\]'"),
    ({}, {"vocab_size": True}, "vocab_size is True; it is a whole number above zero"),
    ({}, {"n_layer": 10**9}, r"config\.json: n_layer is 1000000000; it is a whole number from 1 to 1,000"),
    ({}, {"n_embd": {}}, r"config\.json: n_embd is \{\}; it is a whole number above zero"),
    ({}, {"layer_norm_epsilon": "x"}, "layer_norm_epsilon is 'x'; it is a number above 0"),
    ({}, {"initializer_range": 10**400}, r"initializer_range is 10+\.\.\.; it is a number above 0"),
    ({}, {"embd_pdrop": "x"}, r"config\.json: embd_pdrop is 'x'; it is a share"),
    ({}, {"embd_pdrop": 0.7}, r"config\.json: embd_pdrop is 0\.7 and resid_pdrop 0\.\d+; a model here has one dropout: give all the one"),
    ({}, {"resid_pdrop": None}, "the key 'resid_pdrop' is missing"),
    ({}, {"attn_pdrop": None, "resid_pdrop": 0.2, "embd_pdrop": 0.2}, r"attn_pdrop is 0\.1 and resid_pdrop 0\.2; a model here has one dropout"),
    ({}, {"model_type": "gpt2", "activation_function": ["gelu"]}, r"activation_function is \['gelu'\]; it is a name"),
    ({"lm_head.weight": torch.zeros(7, 2)}, {}, r"lm_head\.weight differs from the embedding"),
    ({"h.0.ln_1.bias": torch.zeros(3)}, {}, r"h\.0\.ln_1\.bias are one and the same"),
])  # fmt: skip
def test_an_invalid_folder_is_rejected_by_tensor_or_key(
    tmp_path: Path, tensors: dict[str, Any], config_changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        huggingface.read_hf_folder(write_changed_folder(tmp_path, tensors, **config_changes))


@pytest.mark.parametrize(("kind", "key", "value", "message"), [
    ("bert", "hidden_size", None, "hidden_size is None; it is a whole number above zero"),
    ("bert", "intermediate_size", None, "intermediate_size is None; it is a whole number above zero"),
    ("gpt1", "n_embd", None, "n_embd is None; it is a whole number above zero"),
    ("gpt2", "n_embd", None, "n_embd is None; it is a whole number above zero"),
    ("gpt2", "n_inner", {}, r"n_inner is \{\}; it is a whole number above zero, or null"),
    ("bert", "attention_probs_dropout_prob", 0.5, r"attention_probs_dropout_prob is 0\.5 and hidden_dropout_prob 0\.0; a model here has one"),
    ("bert", "add_cross_attention", True, "add_cross_attention is True; only False can be read"),
    ("bert", "hidden_act", None, "hidden_act is None; it is a name"),
])  # fmt: skip
def test_an_impossible_config_value_is_rejected_by_the_library_s_key(
    kind: str, key: str, value: Any, message: str, tmp_path: Path
) -> None:
    path = shutil.copytree(golden_folder(kind) / "hf", tmp_path / "hf") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"{path}: {message}"):
        huggingface.read_hf_folder(path.parent)


def test_pickles_and_broken_files_are_rejected_without_loading(tmp_path: Path) -> None:
    folder = write_changed_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="only safetensors are read"):
        huggingface.read_hf_folder(folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(InputError, match="not a safetensors file"):
        huggingface.read_hf_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="not a JSON file"):
        huggingface.read_hf_folder(folder)
    with pytest.raises(InputError, match="there is no such file"):
        huggingface.read_hf_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("family", "other_family", "message"),
    [("bert", "gpt", "cuts text into byte_bpe"), ("gpt", "bert", "cuts text into wordpiece")],
)
def test_a_model_is_not_written_with_the_tokenizer_of_another(
    family: str, other_family: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        huggingface.write_hf_folder(tiny.model(family), tiny.tokenizer(other_family), tmp_path)
    smaller_config = tiny.model_config(family, tokenizer={"vocab_size": 400})
    small_tokenizer = train_tokenizer(
        tiny.documents(),
        smaller_config.tokenizer,
        tokenizer_type=smaller_config.tokenizer_type,
        language="en",
    )
    assert small_tokenizer.vocab_size != tiny.tokenizer(family).vocab_size
    with pytest.raises(InputError, match="rows of embeddings"):
        huggingface.write_hf_folder(tiny.model(family), small_tokenizer, tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("name", "architecture", "message"), [
    ("gpt", {"activation": "gelu"}, "gelu_tanh and a feed-forward"),
    ("gpt", {"position_encoding": "sinusoidal"}, "position_encoding is 'sinusoidal'"),
    ("bert", {"norm_first": True}, "normalizes after each part"),
    ("bert", {"position_encoding": "none"}, "position_encoding is 'none'"),
    ("bert", {"direction": "left_to_right"}, "direction 'left_to_right'"),
    ("bert", {"contextualizer": "lstm"}, "contextualizer 'lstm'"),
    *((name, {}, "cannot be written for transformers; only models of the families bert, gpt and gpt_modern can") for name in ("elmo", "ulmfit", "taglm", "seq2seq", "sa_lstm", "context2vec")),
    *((name, {}, "cannot be written for transformers") for name in tiny.STATIC),
])  # fmt: skip
def test_models_that_transformers_cannot_represent_are_not_exported(
    name: str, architecture: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = tiny.model(name, architecture=architecture)
    with pytest.raises(InputError, match=message):
        huggingface.write_hf_folder(model, tiny.tokenizer(name), tmp_path / name)
    assert not [*tmp_path.iterdir()]
