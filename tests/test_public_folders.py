"""Folders of public checkpoints are validated, fingerprinted and never unpickled."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.helpers.checkout import ROOT

pytest.importorskip("transformers")

from lineage.errors import InputError
from lineage.families import public as family
from lineage.formats import huggingface
from lineage.networks.public_folders import parse_checkpoint_source
from lineage.networks.public_tokenizer import load_public_tokenizer
from lineage.networks.weights import INDEX_FILE
from tests.helpers.public_checkpoints import (
    build_hf_model,
    replace_tensors,
    save_checkpoint,
    tokenizer_json,
)


def read_folder(folder: Path) -> None:
    """Read a folder as the stages sources, tokenizer and pretrain do."""
    load_public_tokenizer(folder, language="en")
    family.load_pretrained(folder, family.PublicConfig())


def set_sep_id(folder: Path, sep_id: int) -> None:
    """Give [SEP] another id in the tokenizer of the folder."""
    path = folder / "tokenizer.json"
    processor = {"type": "BertProcessing", "sep": ["[SEP]", sep_id], "cls": ["[CLS]", 2]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": processor}))


@pytest.mark.parametrize(("kind", "changes", "message"), [
    ("bert", lambda f: (f / "config.json").unlink(), "config.json is missing; name a folder that save_pretrained wrote"),
    ("bert", lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing; only fast tokenizers are read"),
    ("bert", lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    ("bert", lambda f: (f / "model.safetensors").rename(f / "model.safetensors.index.json"), r"index\.json: not a JSON file"),
    ("bert", lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR."), "not a safetensors file"),
    ("bert", {"model_type": "bart"}, "model_type is 'bart'; did you mean 'bert'"),
    ("bert", {"model_type": None}, "model_type is None"),
    ("bert", {"is_decoder": True}, "is_decoder is True; only False can be read"),
    ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ("bert", {"hidden_size": 4 * 10**9}, r"config\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ("gpt2", {"n_positions": None}, "the key 'n_positions' is missing"),
    ("gpt2", {"vocab_size": 5}, "its ids go up to 39"),
    ("bert", lambda f: set_sep_id(f, 10**6), r"tokenizer\.json: post_processor\.separator: its ids go up to 1000000, and the model has 297 rows"),
    ("bert", {"hidden_size": "x"}, r"config\.json: hidden_size is 'x'; it is a whole number above zero"),
    ("bert", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it is a whole number from 1"),
    ("bert", {"attention_probs_dropout_prob": "x"}, r"config\.json: attention_probs_dropout_prob is 'x'; it is a share"),
    ("gpt1", {"embd_pdrop": 2}, r"config\.json: embd_pdrop is 2; it is a share"),
    ("bert", {"hidden_act": "glue"}, r"config\.json: hidden_act is 'glue', which transformers has no activation of"),
    ("gpt1", {"afn": "glue"}, r"config\.json: afn is 'glue', which transformers has no activation of"),
    ("bert", {"use_cache": "x"}, r"config\.json: transformers refuses it: .*use_cache"),
    ("bert", {"dtype": []}, r"config\.json: dtype is \[\]; it is a name, or null"),
    ("roberta", {"max_position_embeddings": 10**30}, r"config\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ("gpt2", {"n_head": 3}, "n_embd, 16, is not a multiple of n_head, 3"),
    ("roberta", {"pad_token_id": "x"}, "pad_token_id is 'x'; it is an id, or null"),
    ("roberta", {"pad_token_id": -1}, "pad_token_id is -1; it is one of"),
    ("bert", {"pad_token_id": 10**6}, "pad_token_id is 1000000; it is one of"),
    ("bert", lambda f: (f / "config.json").write_text("[]"), r"config\.json: expected a mapping of keys, found list"),
    ("bert", lambda f: (f / "tokenizer_config.json").write_text("[]"), r"tokenizer_config\.json: expected a mapping of keys"),
    ("bert", lambda f: ((f / "1_Pooling").mkdir(), (f / "1_Pooling/config.json").write_text("[]")), r"1_Pooling/config\.json: expected a mapping"),
    ("bert", lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer"),
    ("bert", lambda f: (f / "tokenizer.json").write_text(tokenizer_json("gpt2")), "puts no special tokens around a text|ids go up to"),
    ("bert", lambda f: replace_tensors(f, {"bert.encoder.layer.1.output.dense.bias": None}), r"layer\.1\.output\.dense\.bias is missing"),
    ("bert", lambda f: replace_tensors(f, {"bert.embeddings.surprise": torch.zeros(2)}), "surprise has no place"),
    ("gpt2", lambda f: replace_tensors(f, {"lm_head.weight": torch.zeros(397, 16)}), "lm_head.weight differs from the embedding"),
    ("gpt1", lambda f: replace_tensors(f, {"transformer.tokens_embed.weight": torch.full((297, 16), torch.nan)}), "not finite"),
])  # fmt: skip
def test_an_unreadable_folder_is_refused_with_its_name(
    kind: str, changes: Any, message: str, tmp_path: Path
) -> None:
    folder = save_checkpoint(
        kind, tmp_path / "model", config_changes=changes if isinstance(changes, dict) else None
    )
    if not isinstance(changes, dict):
        changes(folder)
    with pytest.raises(InputError, match=message) as error:
        read_folder(folder)
    assert str(folder) in str(error.value)


def save_sharded(folder: Path, kind: str = "bert", **changes: Any) -> Path:
    """Save a checkpoint in shards of 8 kB, and return its folder.

    `changes` are made to the weight_map of the index; None removes a tensor.
    """
    save_checkpoint(kind, folder)
    (folder / "model.safetensors").unlink()
    build_hf_model(kind).save_pretrained(folder, max_shard_size="8KB")
    assert len([*folder.glob("model-*.safetensors")]) > 2
    assert not (folder / "model.safetensors").exists()
    tree = json.loads((folder / INDEX_FILE).read_text())
    tree["weight_map"] = {
        name: shard for name, shard in (tree["weight_map"] | changes).items() if shard is not None
    }
    (folder / INDEX_FILE).write_text(json.dumps(tree))
    return folder


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@torch.inference_mode()
def test_a_sharded_checkpoint_equals_one_in_a_single_file(kind: str, tmp_path: Path) -> None:
    single = save_checkpoint(kind, tmp_path / "whole")
    sharded = save_sharded(tmp_path / "parts", kind)
    (single_config, model), (sharded_config, sharded_model) = (
        family.load_pretrained(folder, family.PublicConfig()) for folder in (single, sharded)
    )
    assert single_config == sharded_config
    assert all(
        torch.equal(value, sharded_model.state_dict()[name])
        for name, value in model.state_dict().items()
    )
    tokenizer = load_public_tokenizer(sharded, language="en")
    batch = tokenizer.collate(
        [tokenizer.encode(text) for text in ("a bank of the river .", "zebra")]
    )
    assert all(
        torch.equal(*layers)
        for layers in zip(model.encode(batch), sharded_model.encode(batch), strict=True)
    )
    tensors = [huggingface.read_hf_folder(folder).state_dict() for folder in (single, sharded)]
    assert all(torch.equal(value, tensors[1][name]) for name, value in tensors[0].items())


def test_the_fingerprint_depends_on_every_shard(tmp_path: Path) -> None:
    folder = save_sharded(tmp_path / "model")
    origin = parse_checkpoint_source("model", None, "models.x")
    before = origin.fingerprint(tmp_path)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert {file["name"] for file in before["files"]} >= {
        "config.json",
        INDEX_FILE,
        "tokenizer.json",
        *(path.name for path in shards),
    }
    for path in shards:
        old = path.read_bytes()
        save_file({name: value + 1 for name, value in load_file(path).items()}, path)
        assert origin.fingerprint(tmp_path) != before
        path.write_bytes(old)
    (folder / "model-00009-of-00008.safetensors").write_bytes(b"read by nobody")
    assert origin.fingerprint(tmp_path) == before


NORM = "bert.embeddings.LayerNorm.weight"


@pytest.mark.parametrize(("changes", "message"), [
    ({NORM: "../elsewhere.safetensors"}, rf"the tensor {NORM} is in '\.\./elsewhere\.safetensors', which names no safetensors file of this folder"),
    ({NORM: "/etc/passwd"}, rf"the tensor {NORM} is in '/etc/passwd', which names no"),
    ({NORM: "pytorch_model.bin"}, rf"the tensor {NORM} is in 'pytorch_model\.bin', which names no"),
    ({NORM: 3}, rf"the tensor {NORM} is in 3, which names no"),
    ({NORM: "model-00099-of-00099.safetensors"}, r"model-00099-of-00099\.safetensors is missing"),
    ({"bert.surprise": "model-00001-of-00005.safetensors"}, r"model-00001-of-00005\.safetensors disagree about the tensor bert\.surprise"),
    ({NORM: None}, rf"model-0000\d-of-00005\.safetensors disagree about the tensor {NORM}"),
])  # fmt: skip
def test_an_index_that_does_not_match_its_shards_is_refused_with_its_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = save_sharded(tmp_path / "model", **changes)
    for read_function in (read_folder, huggingface.read_hf_folder):
        with pytest.raises(InputError, match=message) as error:
            read_function(folder)
        assert str(folder / INDEX_FILE) in str(error.value)


def test_a_tensor_in_two_shards_a_missing_shard_and_an_empty_index_are_refused(
    tmp_path: Path,
) -> None:
    folder = save_sharded(tmp_path / "model")
    first, second, *_ = sorted(folder.glob("model-*.safetensors"))
    tensors = load_file(second)
    name, value = next(iter(load_file(first).items()))
    save_file(tensors | {name: value}, second)
    with pytest.raises(InputError, match=f"{second.name} disagree about the tensor {name}"):
        read_folder(folder)
    second.write_bytes(b"not tensors")
    with pytest.raises(InputError, match=f"{second}: not a safetensors file"):
        read_folder(folder)
    second.unlink()
    for read_function in (
        read_folder,
        lambda folder: parse_checkpoint_source(str(folder), None, "m").fingerprint(tmp_path),
    ):
        with pytest.raises(
            InputError,
            match=f"{INDEX_FILE}: {second.name} is missing; copy all shards into this folder",
        ):
            read_function(folder)
    for text in ("{}", "[]", '{"weight_map": {}}'):
        (folder / INDEX_FILE).write_text(text)
        with pytest.raises(InputError, match=f"{INDEX_FILE}: 'weight_map' is missing"):
            read_folder(folder)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_a_pickle_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_checkpoint("bert", tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    family.load_pretrained(folder, family.PublicConfig())
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        InputError, match=r"pytorch_model\.bin, a pickle, which may run any code and is never read"
    ):
        family.load_pretrained(folder, family.PublicConfig())
    assert not Path("exploded").exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())  # noqa: S301
    assert Path("exploded").exists(), "otherwise the test proves nothing"


def test_the_source_is_a_folder_or_a_repository_pinned_to_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = save_checkpoint("gpt2", tmp_path / "models/one")
    origin = parse_checkpoint_source("models/one", None, "models.x")
    before = origin.fingerprint(tmp_path)
    assert origin.resolve_folder(tmp_path) == folder
    assert {file["name"] for file in before["files"]} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    (folder / "README.md").write_text("read by nobody")
    assert origin.fingerprint(tmp_path) == before
    replace_tensors(folder, {"transformer.ln_f.bias": torch.ones(16)})
    assert origin.fingerprint(tmp_path) != before
    with pytest.raises(
        InputError,
        match=r"models\.\w+\.from: .* changed after the sources stage had read it; run again",
    ):
        origin.verify_unchanged(tmp_path, before)
    assert origin.verify_unchanged(tmp_path, origin.fingerprint(tmp_path)) == origin.resolve_folder(
        tmp_path
    )
    with pytest.raises(
        InputError, match=r"models\.x\.from: .* is not a folder; name one that transformers saved"
    ):
        parse_checkpoint_source("models/two", None, "models.x").resolve_folder(tmp_path)
    with pytest.raises(
        InputError, match=r"models\.x\.revision: 'main' is not a commit of 40 hex digits"
    ):
        parse_checkpoint_source("models/one", "main", "models.x")
    with pytest.raises(InputError, match=r"models\.x\.from: expected a folder"):
        parse_checkpoint_source(None, None, "models.x")


def test_a_repository_is_read_from_the_cache_of_the_hub(tmp_path: Path) -> None:
    """Use a separate process, because the library reads HF_HOME when it is imported."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / f"hub/models--some--model/snapshots/{revision}"
    save_checkpoint("gpt2", snapshot)
    save_sharded(tmp_path / f"hub/models--some--parts/snapshots/{revision}")
    statements = [
        f"print(parse_checkpoint_source('some/{name}', '{revision}', 'm').resolve_folder(Path('.')), flush=True)"
        for name in ("model", "parts", "other")
    ]
    code = "; ".join(
        [
            "from pathlib import Path",
            "from lineage.networks.public_folders import *",
            "from lineage.networks.public_tokenizer import *",
            *statements,
        ]
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert process.stdout.split() == [str(snapshot), str(snapshot).replace("--model", "--parts")]
    assert (
        "m.from: some/other at 0123456789ab is not in the Hub's cache and could not be fetched"
        in process.stderr
    )
