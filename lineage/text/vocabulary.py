"""Training a variant's own tokenizer on its corpus, with the `tokenizers` library."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lineage.errors import InputError
from lineage.text.language import lowered, spaceless, word_pattern, words
from lineage.text.normalisation import NORMALISERS
from lineage.text.tokenization import MARKS, Reader, ReaderSettings, TokenizerSettings, Unit

WORD_END = "</w>"
POINTS = r"\.{2,}|\b(?:[^\W\d_]\.){2,}"  # dots in a row, and U.S.


def train_tokenizer(texts: Sequence[str], settings: TokenizerSettings, *, unit: Unit, language: str) -> Reader:
    """Train a variant's tokenizer on the corpus's training texts. The same texts give the same ids, in any process.

    Raises InputError where no word is frequent enough.
    """
    if settings.normalise:
        texts = [NORMALISERS[settings.normalise](text).text for text in texts]
    if unit == "word":
        tokenizer = _train_words(texts, settings, language)
    elif unit == "byte_bpe":
        tokenizer = _train_byte_bpe(texts, settings)
    else:
        tokenizer = _train_bpe(texts, settings, language) if unit == "bpe" else _train_wordpiece(texts, settings, language)
    return Reader(tokenizer, ReaderSettings(unit, language, settings.word_bytes, settings.direction, settings.normalise))


def _train_words(texts: Sequence[str], settings: TokenizerSettings, language: str) -> Tokenizer:
    """The most frequent words; equal counts in alphabetical order."""
    counts = Counter(chain.from_iterable(words(lowered(text) if settings.lowercase else text, language) for text in texts))
    if max(counts.values(), default=0) < settings.minimum_count:
        raise InputError(f"tokenizer.minimum_count: no word of the corpus is there {settings.minimum_count:,} times; lower it")
    frequent = sorted((w for w, n in counts.items() if n >= settings.minimum_count), key=lambda w: (-counts[w], w))
    entries = [*MARKS["word"], *frequent[: settings.vocabulary - len(MARKS["word"])]]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(entries)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase() if settings.lowercase else None
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word_pattern(language)), "removed", invert=True)
    return tokenizer


def _train_byte_bpe(texts: Sequence[str], settings: TokenizerSettings) -> Tokenizer:
    """Byte-level BPE as in GPT-2: every text can be written and read back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase() if settings.lowercase else None
    # A leading space makes a text's first word the same piece as anywhere else.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary,
        min_frequency=max(2, settings.minimum_count),
        special_tokens=list(MARKS["byte_bpe"]),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_bpe(texts: Sequence[str], settings: TokenizerSettings, language: str) -> Tokenizer:
    """BPE of characters with </w> at a word's end, as GPT-1's. Rare characters are unknown.

    Mended text (`normalise: ftfy`) keeps its accents and is cut into words by rules of our own in the place of spaCy's (don't is do n't; 3.5, U.S.
    and ... stay whole); other text as transformers' OpenAIGPTTokenizer does where it finds no ftfy: BERT's words, without accents.

    Like WordPiece's, the trainer numbers the characters that end a word (a</w>) in an order that differs between processes.
    """
    draft = _bpe({"<unk>": 0}, [], settings, language)
    alone, inside = _alphabet(texts, draft, room=settings.vocabulary * (3 if spaceless(language) else 1) // 4, own_entries=2)
    characters, marks = sorted([*alone, *inside]), list(MARKS["bpe"])
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocabulary,
        min_frequency=max(2, settings.minimum_count),
        special_tokens=[*marks, *(f"{character}{WORD_END}" for character in characters)],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        end_of_word_suffix=WORD_END,
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(draft.to_str())["model"]["merges"]]
    tokenizer = _bpe(draft.get_vocab(), merges, settings, language)
    tokenizer.add_special_tokens(marks)
    return tokenizer


def _bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings, language: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=WORD_END))
    if settings.normalise:
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=settings.lowercase
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{POINTS}|{word_pattern(language)}"), "removed", invert=True)
    else:
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=WORD_END)
    return tokenizer


def _train_wordpiece(texts: Sequence[str], settings: TokenizerSettings, language: str) -> Tokenizer:
    """WordPiece with BERT's normaliser, which isolates Chinese characters. Rare characters are unknown: see `_alphabet`.

    The trainer numbers the characters that go on a word (##a) in the order of a hash map, which differs between processes, and breaks ties by
    number. As special tokens, sorted, they have their numbers before; a tokenizer made anew from the vocabulary then holds them as plain entries.
    """
    draft = _wordpiece({"[UNK]": 0}, settings)
    alone, inside = _alphabet(texts, draft, room=settings.vocabulary * (3 if spaceless(language) else 1) // 4)
    marks = list(MARKS["wordpiece"])
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocabulary,
        min_frequency=max(2, settings.minimum_count),
        special_tokens=[*marks, *(f"##{character}" for character in inside)],
        initial_alphabet=sorted([*alone, *inside]),
        limit_alphabet=len(alone) + len(inside),
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    tokenizer = _wordpiece(draft.get_vocab(), settings)
    tokenizer.add_special_tokens(marks)
    return tokenizer


def _alphabet(texts: Sequence[str], draft: Tokenizer, *, room: int, own_entries: int = 1) -> tuple[list[str], list[str]]:
    """The most frequent characters that `room` entries hold: those that are words of their own (Chinese), and those that also go on a word.

    The former take `own_entries` each, the latter two. Without a limit the strange characters of a few documents would fill the vocabulary.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(draft.normalizer.normalize_str(text))
    found: dict[bool, list[str]] = {True: [], False: []}
    for character in sorted(counts.keys() - {" ", "\n"}, key=lambda c: (-counts[c], c)):
        own = draft.normalizer.normalize_str(f"a{character}a") != f"a{character}a"
        room -= own_entries if own else 2
        if room < 0:
            break
        found[own].append(character)
    return sorted(found[True]), sorted(found[False])


def _wordpiece(vocabulary: dict[str, int], settings: TokenizerSettings) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
