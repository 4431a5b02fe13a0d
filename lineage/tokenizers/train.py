"""Train a model's own tokenizer on its corpus, with the `tokenizers` library."""

import json
from collections import Counter
from collections.abc import Sequence

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as BackendTokenizer

from lineage.errors import InputError
from lineage.language import is_spaceless, split_words, to_lowercase, word_pattern
from lineage.tokenizers.normalization import NORMALIZERS
from lineage.tokenizers.tokenizer import (
    SPECIAL_TOKENS,
    Tokenizer,
    TokenizerConfig,
    TokenizerSettings,
    TokenizerType,
)

END_OF_WORD_SUFFIX = "</w>"
DOTS_PATTERN = r"\.{2,}|\b(?:[^\W\d_]\.){2,}"  # dots in a row, and U.S.


def train_tokenizer(
    texts: Sequence[str],
    settings: TokenizerSettings,
    *,
    tokenizer_type: TokenizerType,
    language: str,
) -> Tokenizer:
    """Train a tokenizer on the corpus's training texts."""
    if settings.normalizer:
        normalize = NORMALIZERS[settings.normalizer]
        texts = [normalize(text).text for text in texts]
    if tokenizer_type == "word":
        backend = _train_words(texts, settings, language)
    elif tokenizer_type == "byte_bpe":
        backend = _train_byte_bpe(texts, settings)
    elif tokenizer_type == "bpe":
        backend = _train_bpe(texts, settings, language)
    else:
        backend = _train_wordpiece(texts, settings, language)
    config = TokenizerConfig(
        tokenizer_type, language, settings.max_word_bytes, settings.direction, settings.normalizer
    )
    return Tokenizer(backend, config)


def _train_words(
    texts: Sequence[str], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    """Take the most frequent words; ties in alphabetical order."""
    counts = Counter[str]()
    for text in texts:
        counts.update(split_words(to_lowercase(text) if settings.lowercase else text, language))
    frequent = [word for word, count in counts.items() if count >= settings.min_frequency]
    if not frequent:
        raise InputError(
            f"tokenizer.min_frequency: no word of the corpus occurs {settings.min_frequency:,} "
            "times; lower it"
        )
    frequent.sort(key=lambda word: (-counts[word], word))
    special_tokens = SPECIAL_TOKENS["word"]
    entries = [*special_tokens, *frequent[: settings.vocab_size - len(special_tokens)]]
    vocab = {word: token_id for token_id, word in enumerate(entries)}
    backend = BackendTokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase() if settings.lowercase else None
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex(word_pattern(language)), "removed", invert=True
    )
    return backend


def _train_byte_bpe(texts: Sequence[str], settings: TokenizerSettings) -> BackendTokenizer:
    """Train byte-level BPE as in GPT-2, which is lossless."""
    backend = BackendTokenizer(models.BPE())
    backend.normalizer = normalizers.Lowercase() if settings.lowercase else None
    # A leading space makes a text's first word the same token as anywhere else.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=max(2, settings.min_frequency),
        special_tokens=list(SPECIAL_TOKENS["byte_bpe"]),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_bpe(
    texts: Sequence[str], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    """Train BPE of characters with </w> at a word's end, as in GPT-1. Rare characters are unknown.

    With `normalizer: ftfy` text is split into words by our own rules instead of spaCy's, without it
    as transformers' OpenAIGPTTokenizer does without ftfy. The characters that end a word are passed
    as special tokens for the reason in `_train_wordpiece`.
    """
    draft = _build_bpe({"<unk>": 0}, [], settings, language)
    standalone, joined = _select_alphabet(
        texts,
        draft,
        max_entries=_max_alphabet_entries(settings, language),
        entries_per_standalone=2,
    )
    characters = sorted([*standalone, *joined])
    special_tokens = list(SPECIAL_TOKENS["bpe"])
    word_ends = [f"{character}{END_OF_WORD_SUFFIX}" for character in characters]
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=max(2, settings.min_frequency),
        special_tokens=[*special_tokens, *word_ends],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        end_of_word_suffix=END_OF_WORD_SUFFIX,
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(draft.to_str())["model"]["merges"]]
    backend = _build_bpe(draft.get_vocab(), merges, settings, language)
    backend.add_special_tokens(special_tokens)
    return backend


def _build_bpe(
    vocab: dict[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    backend = BackendTokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix=END_OF_WORD_SUFFIX)
    )
    if settings.normalizer:
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=False,
            handle_chinese_chars=False,
            strip_accents=False,
            lowercase=settings.lowercase,
        )
        backend.pre_tokenizer = pre_tokenizers.Split(
            Regex(f"{DOTS_PATTERN}|{word_pattern(language)}"), "removed", invert=True
        )
    else:
        backend.normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD_SUFFIX)
    return backend


def _train_wordpiece(
    texts: Sequence[str], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    """Train WordPiece with BERT's normalizer, which isolates Chinese characters.

    The trainer numbers the characters that continue a word (##a) in the order of a hash map, which
    differs between processes, and breaks ties by number. Passed sorted as special tokens, they are
    numbered before; the tokenizer that is then built holds them as plain entries.
    """
    draft = _build_wordpiece({"[UNK]": 0}, settings)
    standalone, joined = _select_alphabet(
        texts, draft, max_entries=_max_alphabet_entries(settings, language)
    )
    special_tokens = list(SPECIAL_TOKENS["wordpiece"])
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=max(2, settings.min_frequency),
        special_tokens=[*special_tokens, *(f"##{character}" for character in joined)],
        initial_alphabet=sorted([*standalone, *joined]),
        limit_alphabet=len(standalone) + len(joined),
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    backend = _build_wordpiece(draft.get_vocab(), settings)
    backend.add_special_tokens(special_tokens)
    return backend


def _build_wordpiece(vocab: dict[str, int], settings: TokenizerSettings) -> BackendTokenizer:
    backend = BackendTokenizer(
        models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _max_alphabet_entries(settings: TokenizerSettings, language: str) -> int:
    """Return a quarter of the vocabulary, or three quarters in a language without spaces."""
    quarters = 3 if is_spaceless(language) else 1
    return settings.vocab_size * quarters // 4


def _select_alphabet(
    texts: Sequence[str],
    draft: BackendTokenizer,
    *,
    max_entries: int,
    entries_per_standalone: int = 1,
) -> tuple[list[str], list[str]]:
    """Return the most frequent characters that fit into `max_entries`, standalone and joined ones.

    Standalone characters are words of their own (Chinese) and take `entries_per_standalone`
    entries; joined ones also occur inside words and take two.
    """
    counts = Counter[str]()
    for text in texts:
        counts.update(draft.normalizer.normalize_str(text))
    standalone = []
    joined = []
    for character in sorted(counts.keys() - {" ", "\n"}, key=lambda c: (-counts[c], c)):
        is_standalone = draft.normalizer.normalize_str(f"a{character}a") != f"a{character}a"
        max_entries -= entries_per_standalone if is_standalone else 2
        if max_entries < 0:
            break
        if is_standalone:
            standalone.append(character)
        else:
            joined.append(character)
    return sorted(standalone), sorted(joined)
