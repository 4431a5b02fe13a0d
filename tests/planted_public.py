"""Bugs to plant in how public checkpoints are read."""

from tests.planted import Bug

READING = "test_public_reading.py::"
BUGS = {
    "[CLS] of an encoder of sentences goes through a pooler": Bug(
        "lineage/models/public.py",
        'self.about.pooler and reads == "first" else',
        "self.about.pooler else",
        READING + "test_an_encoder_of_sentences_that_reads_cls_reads_it_as_it_stands",
    ),
    "the second text has segment 1 whatever its tokenizer says": Bug(
        "lineage/models/public.py",
        " * batch.second_type",
        "",
        READING + "test_the_second_text_has_the_segment_that_its_tokenizer_gives_it",
    ),
    "two texts of one segment are one text to frozen readers": Bug(
        "lineage/evaluation/encoding.py",
        "torch.from_numpy(reading.segments)",
        "torch.from_numpy(reading.segments) * reader.frame.second",
        READING + "test_frozen_readers_tell_two_texts_apart_whose_tokenizer_gives_them_one_segment",
    ),
    "a word stands before every text": Bug(
        "lineage/models/public_tokenizer.py",
        "isinstance(number, int) and number in marks",
        "isinstance(number, int) and number < about.config['vocab_size']",
        READING + "test_the_begin_mark_is_the_tokenizer_s",
    ),
    "a folder asks for code": Bug(
        "lineage/models/public.py",
        "if not CODE.search(key)",
        "if True",
        READING + "test_no_key_of_a_folder_asks_for_other_code",
    ),
    "a tied table has one name": Bug(
        "lineage/models/public.py",
        "and table not in tensors]",
        "and False]",
        READING + "test_a_tied_table_is_read_by_either_name",
    ),
    "what a public vocabulary lacks is known": Bug(
        "lineage/tokenizers/tokenizer.py",
        'return self.frame.unknown if self.unit == "own" else',
        'return None if self.unit == "own" else',
        READING + "test_a_word_that_has_no_piece_is_unknown_to_a_public_model_too",
    ),
    "dropout of a folder that names none stays": Bug(
        "lineage/models/public.py",
        "                if hasattr(self.theirs, name):",
        "                if name in theirs:",
        READING + "test_dropout_is_what_the_block_says_whether_or_not_the_folder_names_one",
    ),
    "a word is read as the mean by all public models": Bug(
        "lineage/models/public.py",
        'self.read_word = "last" if self.causal else "mean"',
        'self.read_word = "mean"',
        READING + "test_a_word_is_read_at_its_last_piece_from_the_left_and_bytes_lose_nothing",
    ),
}
