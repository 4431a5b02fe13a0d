"""Folders of public checkpoints: refused by name where they cannot be read, known by their digests, and never a pickle."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from lineage.errors import InputError
from lineage.families import public as family
from lineage.public import origin_of, read_reader
from tests.public_checkpoints import changed, save, tokenizer


def read(folder: Path) -> None:
    """As the stages sources, tokenizer and pretrain do."""
    read_reader(folder, language="en")
    family.adopt(folder, family.Config())


@pytest.mark.parametrize(("kind", "spoil", "said"), [
    ("bert", lambda f: (f / "config.json").unlink(), "config.json is missing; name a folder that save_pretrained wrote"),
    ("bert", lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing; only fast tokenizers are read"),
    ("bert", lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    ("bert", lambda f: (f / "model.safetensors").rename(f / "model.safetensors.index.json"), "in several files"),
    ("bert", lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR."), "not a safetensors file"),
    ("bert", {"model_type": "bart"}, "model_type is 'bart'; did you mean 'bert'"),
    ("bert", {"model_type": None}, "model_type is None"),
    ("bert", {"is_decoder": True}, "is_decoder is True; only False can be read"),
    ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ("bert", {"hidden_size": 4 * 10**9}, r"config\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ("gpt2", {"n_positions": None}, "the key 'n_positions' is missing"),
    ("gpt2", {"vocab_size": 5}, "its ids go up to 39"),
    ("bert", lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer"),
    ("bert", lambda f: (f / "tokenizer.json").write_text(tokenizer("gpt2")), "puts no marks round a text|ids go up to"),
    ("bert", lambda f: changed(f, {"bert.encoder.layer.1.output.dense.bias": None}), r"layer\.1\.output\.dense\.bias is missing"),
    ("bert", lambda f: changed(f, {"bert.embeddings.surprise": torch.zeros(2)}), "surprise has no place"),
    ("gpt2", lambda f: changed(f, {"lm_head.weight": torch.zeros(397, 16)}), "lm_head.weight is another than that of the embedding"),
    ("gpt1", lambda f: changed(f, {"transformer.tokens_embed.weight": torch.full((297, 16), torch.nan)}), "not finite"),
])  # fmt: skip
def test_a_folder_that_cannot_be_read_is_refused_by_name(kind: str, spoil: Any, said: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path / "model", facts=spoil if isinstance(spoil, dict) else None)
    if not isinstance(spoil, dict):
        spoil(folder)
    with pytest.raises(InputError, match=said) as error:
        read(folder)
    assert str(folder) in str(error.value)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_a_pickle_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save("bert", tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    family.adopt(folder, family.Config())
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"pytorch_model\.bin, a pickle, which may run any code and is never read"):
        family.adopt(folder, family.Config())
    assert not Path("exploded").exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())  # noqa: S301
    assert Path("exploded").exists(), "else this shows nothing"


def test_where_it_comes_from_is_a_folder_or_a_pinned_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = save("gpt2", tmp_path / "models/one")
    origin = origin_of("models/one", None, "models.x")
    before = origin.facts(tmp_path)
    assert origin.folder(tmp_path) == folder and {file["name"] for file in before["files"]} >= {"config.json", "model.safetensors", "tokenizer.json"}
    (folder / "README.md").write_text("read by nobody")
    assert origin.facts(tmp_path) == before
    changed(folder, {"transformer.ln_f.bias": torch.ones(16)})
    assert origin.facts(tmp_path) != before
    with pytest.raises(InputError, match=r"models\.x\.from: .* is no folder; name one that transformers saved"):
        origin_of("models/two", None, "models.x").folder(tmp_path)
    with pytest.raises(InputError, match=r"models\.x\.revision: 'main' is no commit of 40 hex digits"):
        origin_of("models/one", "main", "models.x")
    with pytest.raises(InputError, match=r"models\.x\.from: expected a folder"):
        origin_of(None, None, "models.x")


def test_a_repository_is_read_from_the_hubs_cache(tmp_path: Path) -> None:
    """In a process of its own, since the library reads HF_HOME when it is imported."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / f"hub/models--some--model/snapshots/{revision}"
    save("gpt2", snapshot)
    asked = [f"print(origin_of('some/{name}', '{revision}', 'm').folder(Path('.')), flush=True)" for name in ("model", "other")]
    code = "; ".join(["from pathlib import Path", "from lineage.public import *", *asked])
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment.pop("HF_HUB_CACHE", None)
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=root, check=False)
    assert done.stdout.strip() == str(snapshot)
    assert "m.from: some/other at 0123456789ab is not in the Hub's cache and could not be fetched" in done.stderr
