"""A public checkpoint's tokenizer, with the special tokens it puts around one text and two."""

import json
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import pre_tokenizers

from lineage.errors import InputError
from lineage.networks.public_folders import CheckpointInfo, inspect_checkpoint, read_json_mapping
from lineage.tokenizers.tokenizer import SpecialTokenTemplate, Tokenizer, TokenizerConfig


def load_public_tokenizer(folder: Path, *, language: str) -> Tokenizer:
    """Load a folder's tokenizer. Raises InputError if it does not fit the folder's model."""
    info = inspect_checkpoint(folder)
    path = folder / "tokenizer.json"
    try:
        backend = BackendTokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise InputError(f"{path}: not a tokenizer: {error}; save it again") from None
    backend.no_truncation()  # the study decides how long a text may be
    backend.no_padding()
    template = _find_template(backend, path)
    # The special tokens are known now. The post-processor would also trim the spans, so that a
    # piece that is a space looked like a special token.
    backend.post_processor = None
    if not info.causal and not (template.prefix and template.suffix):
        raise InputError(
            f"{path}: puts no special tokens around a text, but a "
            f"{info.hf_config['model_type']} was pretrained with them; save it with its "
            "post_processor"
        )
    bos_id = _bos_token_id(folder, info, backend)
    if info.causal and not template.prefix and bos_id is not None:
        # It was between the texts of pretraining; without it the first piece has no probability.
        template = replace(template, prefix=(bos_id,), separator=template.separator or (bos_id,))
    pad_id = info.hf_config.get("pad_token_id")
    if not isinstance(pad_id, int) or not 0 <= pad_id < info.hf_config["vocab_size"]:
        pad_id = 0
    template = replace(
        template,
        pad_token_id=pad_id,
        mask_token_id=_mask_token_id(folder, info, backend),
        unk_token_id=_unk_token_id(backend),
    )
    is_byte_level = isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)
    lossless = backend.normalizer is None and is_byte_level
    config = TokenizerConfig(
        tokenizer_type="pretrained",
        language=language,
        max_word_bytes=50,
        direction="forward",
        normalizer=None,
        special_token_template=template,
        lossless=lossless,
    )
    public_tokenizer = Tokenizer(backend, config)
    check_token_ids(
        public_tokenizer, info, tokenizer_place=str(path), template_place=f"{path}: post_processor"
    )
    return public_tokenizer


def check_token_ids(
    public_tokenizer: Tokenizer, info: CheckpointInfo, *, tokenizer_place: str, template_place: str
) -> None:
    """Raise InputError if the tokenizer or its template has an id beyond the model's rows."""
    num_rows = info.hf_config["vocab_size"]
    vocab = public_tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    ids_by_place: dict[str, list[int]] = {tokenizer_place: [*vocab.values()]}
    for key, value in vars(public_tokenizer.special_token_template).items():
        ids_by_place[f"{template_place}.{key}"] = (
            [*value] if isinstance(value, tuple) else [value or 0]
        )
    for place, ids in ids_by_place.items():
        if ids and max(ids) >= num_rows:
            raise InputError(
                f"{place}: its ids go up to {max(ids)}, and the model has {num_rows} rows of "
                "embeddings; give the model's own tokenizer"
            )


def _find_template(backend: BackendTokenizer, path: Path) -> SpecialTokenTemplate:
    """Find the special tokens by encoding one text and two."""
    one = _tokens_around(backend, path, "a", None)
    two = _tokens_around(backend, path, "a", "a")
    if (one.prefix, one.suffix) != (two.prefix, two.suffix):
        raise InputError(
            f"{path}: puts other special tokens around two texts than around one, which cannot be "
            "read; give a tokenizer as its model's paper has it"
        )
    return two


def _tokens_around(
    backend: BackendTokenizer, path: Path, text: str, pair: str | None
) -> SpecialTokenTemplate:
    encoded = backend.encode(text, pair)
    is_special = encoded.special_tokens_mask
    text_positions = [i for i, special in enumerate(is_special) if not special]
    if not text_positions:
        raise InputError(f"{path}: cannot read the letter a; save the tokenizer again")
    start = text_positions[0]
    end = text_positions[-1]
    return SpecialTokenTemplate(
        prefix=tuple(encoded.ids[:start]),
        separator=tuple(encoded.ids[i] for i in range(start, end) if is_special[i]),
        suffix=tuple(encoded.ids[end + 1 :]),
        second_token_type_id=1 if encoded.type_ids[end] > 0 else 0,
    )


def _bos_token_id(folder: Path, info: CheckpointInfo, backend: BackendTokenizer) -> int | None:
    """Return the special token before each text of a causal model's pretraining.

    It is the tokenizer's, or config.json's if that is a special token: a tokenizer that was trained
    again may have a word at that id.
    """
    token = _token_name(folder, "bos_token")
    token_id = info.hf_config.get("bos_token_id")
    if isinstance(token, str):
        token_id = backend.token_to_id(token)
    for special_id, added_token in backend.get_added_tokens_decoder().items():
        if added_token.special and special_id == token_id:
            return special_id
    return None


def _token_name(folder: Path, key: str) -> object:
    """Return a token that tokenizer_config.json names; None if it does not."""
    path = folder / "tokenizer_config.json"
    value = read_json_mapping(path).get(key) if path.is_file() else None
    return value.get("content") if isinstance(value, dict) else value


def _unk_token_id(backend: BackendTokenizer) -> int | None:
    """Return the piece for text outside the vocabulary, if there is one."""
    model = json.loads(backend.to_str())["model"]
    token = model.get("unk_token")
    if isinstance(token, str):
        return backend.token_to_id(token)
    token_id = model.get("unk_id")
    return token_id if isinstance(token_id, int) else None


def _mask_token_id(folder: Path, info: CheckpointInfo, backend: BackendTokenizer) -> int | None:
    """Return the id of the mask; None for a causal model. Raises InputError if it is missing."""
    if info.causal:
        return None
    token = _token_name(folder, "mask_token") or info.model_type.mask_token
    token_id = backend.token_to_id(token) if isinstance(token, str) else None
    if token_id is None:
        raise InputError(
            f"{folder / 'tokenizer.json'}: its masked word {token!r} is missing, which a "
            f"{info.hf_config['model_type']} has; save it again"
        )
    return token_id
