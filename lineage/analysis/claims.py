"""Claims of the papers from word2vec to today's models, and what a study says of each.

A claim is an entry of QUESTIONS. It finds comparisons in which the first system should be the better
one. Those of one claim are one family of tests. Models that are not shown to have learned more than
a 5-gram model are no evidence, but for the claims on grammar and on today's recipe, and for
ablations of a system that pretraining is shown to help. Nor are systems at chance, public models,
which have read far more text than the others, and systems made of two models, which have two
budgets. Ablations are evidence for the setting that they change alone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lineage.analysis.cells import ResultCell
from lineage.analysis.comparisons import (
    PairedScores,
    PlannedComparison,
    compare_family,
    pair_scores,
)
from lineage.analysis.records import (
    TEST_SET_SEPARATOR,
    UNMATCHED_FAMILIES,
    Analysis,
    ClaimFinding,
    Comparison,
    ComparisonType,
    Setting,
    System,
)
from lineage.analysis.saved_epochs import SavedEpochs, compare_saved_epochs
from lineage.analysis.settings import SILENT_OUTCOMES, comparison_outcome
from lineage.answers.span import SpanAnswer
from lineage.networks.registry import load_family
from lineage.tasks.base import Kind, load_kind

Tree = Mapping[str, Any]

STATIC = ("word2vec", "fasttext", "glove")
CONTEXTUAL = (
    "context2vec",
    "taglm",
    "elmo",
    "ulmfit",
    "gpt",
    "bert",
    "gpt_modern",
    "bert_modern",
    "gpt_bert",
)
MORE_LABELS = 10
# The unit of a gain over a training that was stopped before its learning rate had come down.
AT_MOST = "points at most"
# Other keys that a recurrent contextualizer cannot have.
LSTM_KEYS = ("architecture.position_encoding", "architecture.num_heads")


@dataclass(frozen=True)
class Evidence:
    """The comparisons of a study, as claims look at them."""

    analysis: Analysis
    planned: Sequence[PlannedComparison]
    models: Mapping[str, Tree] = field(default_factory=dict)  # the block of each model
    # Models at the end of their training, each with itself at its first intermediate checkpoint.
    text_points: Sequence[tuple[ResultCell, ResultCell]] = ()
    saved_epochs: Sequence[SavedEpochs] = ()
    # With the scores of items in which words stand between those that must agree.
    distant_cells: Mapping[tuple[Setting, System], ResultCell] = field(default_factory=dict)

    @cached_property
    def cells(self) -> dict[tuple[Setting, System], ResultCell]:
        """The cells that are compared."""
        return {
            (cell.setting, cell.system): cell
            for one in self.planned
            for cell in (one.first, one.second)
        }

    @cached_property
    def weak_models(self) -> set[str]:
        """The models that are not shown to have learned more than a 5-gram model."""
        return {one.model for one in self.analysis.ngram_comparisons if one.learned_less}

    def find(
        self,
        comparison_type: ComparisonType,
        *,
        suits: Callable[[Kind], bool] | None = None,
        transfer: str = "",
        weak_too: bool = False,
    ) -> Iterator[PlannedComparison]:
        """Yield comparisons of one type, on kinds of task that suit and in this use; else all.

        `weak_too` includes models that are not shown to have learned more than a 5-gram model.
        """
        for one in self.analysis.comparisons:
            if one.comparison_type != comparison_type or TEST_SET_SEPARATOR in one.task:
                continue
            if {one.first.family, one.second.family} & {*UNMATCHED_FAMILIES}:
                continue
            # A variant is the same model again in all but one setting, and in some uses in all.
            if comparison_type != "ablation" and self._is_variant(one.first):
                continue
            is_weak = bool(self.weak_models & {one.first.model, one.second.model})
            if is_weak and not weak_too and not self._is_helped(one):
                continue
            first, second = (self.cells[one.setting, each] for each in (one.first, one.second))
            is_of_kind = suits is None or suits(load_kind(first.kind))
            is_of_use = transfer in ("", one.first.transfer)
            if is_of_kind and is_of_use and self._says_something(one):
                yield PlannedComparison(comparison_type, first, second)

    def _is_variant(self, system: System) -> bool:
        return system.model in self.analysis.grid.ablation_of

    @cached_property
    def _helped(self) -> set[tuple[Setting, System]]:
        """The systems that are shown to be better than the same ones with random weights."""
        return {
            (one.setting, one.first)
            for one in self.analysis.comparisons
            if one.comparison_type == "pretraining" and one.verdict == "better"
        }

    def _is_helped(self, comparison: Comparison) -> bool:
        """Return whether pretraining is shown to help one of an ablation's two on this task.

        Then it has learned something that the task needs, however it predicts text.
        """
        pair = {(comparison.setting, each) for each in (comparison.first, comparison.second)}
        return comparison.comparison_type == "ablation" and bool(pair & self._helped)

    def _says_something(self, comparison: Comparison) -> bool:
        """Return whether a comparison could show a difference."""
        if comparison.verdict == "too few seeds":
            return False
        # The setting that an ablation changes plays no part in this use of the model.
        is_same = comparison.verdict == "identical predictions"
        if comparison.comparison_type == "ablation" and is_same:
            return False
        return comparison_outcome(self.analysis, comparison) not in SILENT_OUTCOMES

    def find_families(
        self,
        first: Collection[str],
        second: Collection[str],
        *,
        suits: Callable[[Kind], bool] | None = None,
        transfer: str = "",
    ) -> Iterator[PlannedComparison]:
        """Yield comparisons of pretrained models of these families, the first named first."""
        for one in self.find("models", suits=suits, transfer=transfer):
            for pair in _both_orders(one):
                is_pretrained = pair.first.system.init == "pretrained"
                families = pair.first.system.family, pair.second.system.family
                if is_pretrained and families[0] in first and families[1] in second:
                    yield pair

    def find_successors(self) -> Iterator[PlannedComparison]:
        """Yield comparisons of a family with the one that it succeeds.

        What a recipe has learned is the question, so models that learned little count too.
        """
        for one in self.find("models", weak_too=True):
            for pair in _both_orders(one):
                older = load_family(pair.first.system.family).successor_of
                if pair.first.system.init == "pretrained" and older == pair.second.system.family:
                    yield pair

    def find_changes(
        self, key: str, is_better: Callable[[Any], bool], *, with_keys: Iterable[str] = ()
    ) -> Iterator[PlannedComparison]:
        """Yield ablations in which this key alone differs, the model with the better value first.

        The key is one of a model's block, with dots. `with_keys` may differ too.
        """
        for one in self.find("ablation"):
            for pair in _both_orders(one):
                first = _flatten(self.models.get(pair.first.system.model, {}))
                second = _flatten(self.models.get(pair.second.system.model, {}))
                names = first.keys() | second.keys()
                changed = {name for name in names if first.get(name) != second.get(name)}
                is_alone = key in changed and changed <= {key, *with_keys}
                if is_alone and is_better(first.get(key)) and not is_better(second.get(key)):
                    yield pair

    def find_over_distance(self, pairs: Iterable[PlannedComparison]) -> Iterator[PlannedComparison]:
        """Yield comparisons with the scores of those items alone."""
        for one in pairs:
            first, second = (
                self.distant_cells.get((cell.setting, cell.system))
                for cell in (one.first, one.second)
            )
            if first and second and any(map(_is_above_half, (first, second))):
                yield replace(one, first=first, second=second)

    def find_fewer_labels(self, factor: int) -> Iterator[PlannedComparison]:
        """Yield pretrained systems beside their random init with `factor` times the labels."""
        known = [
            cell
            for cell in self.cells.values()
            if cell.train_examples
            and self._counts(cell.system)
            and not self._is_variant(cell.system)
            and TEST_SET_SEPARATOR not in cell.task
        ]
        random = [cell for cell in known if cell.system.init == "random"]
        for cell in known:
            for other in random:
                pretrained = replace(other.system, init="pretrained", recipe=cell.system.recipe)
                has_more = other.train_examples >= factor * cell.train_examples
                is_same_use = (pretrained, other.task) == (cell.system, cell.task)
                if has_more and is_same_use and self._is_above_chance(cell, other):
                    # Not "pretraining", which has the same number of labels on both sides.
                    yield PlannedComparison("models", cell, other)

    def find_more_text(self) -> Iterator[PlannedComparison]:
        """Yield models at the end of their training beside themselves at its first checkpoint."""
        for last, first in self.text_points:
            if self._counts(last.system) and self._is_above_chance(last):
                # Not "pretraining", which has random weights on one side.
                yield PlannedComparison("models", last, first)

    def compare_epochs(self) -> list[Comparison]:
        """Compare the epochs that models need with and without pretraining.

        Only where random weights learn something: a score at chance is soon reached.
        """
        return compare_saved_epochs(
            [
                one
                for one in self.saved_epochs
                if self._counts(one.pretrained)
                and not self._is_variant(one.pretrained)
                and (one.setting, one.random) in self.cells
                and self._is_above_chance(self.cells[one.setting, one.random])
            ]
        )

    def _counts(self, system: System) -> bool:
        """Return whether a system was pretrained in this study and has learned enough."""
        return system.model not in self.weak_models and system.family not in UNMATCHED_FAMILIES

    def _is_above_chance(self, *cells: ResultCell) -> bool:
        """Return whether one of these cells is shown to be above chance."""
        scores = [self.analysis.find_score(cell.system, cell.setting) for cell in cells]
        return any(score.above_chance for score in scores)


def _is_above_half(cell: ResultCell) -> bool:
    """Return whether a system is shown to choose better than chance between two sentences."""
    interval = cell.interval_over_items()
    return interval is not None and interval[0] > 0.5


def _both_orders(planned: PlannedComparison) -> tuple[PlannedComparison, PlannedComparison]:
    return planned, replace(planned, first=planned.second, second=planned.first)


def _flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Return the values of a block by their keys, joined by dots."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{name}.")
        else:
            found[name] = value
    return found


@dataclass(frozen=True)
class Claim:
    """A claim of a paper."""

    text: str
    source: str
    published: str  # what the paper printed
    find: Callable[[Evidence], Iterator[PlannedComparison]] = lambda _: iter(())
    # Returns whether a comparison may also show the opposite.
    has_opposite: Callable[[PlannedComparison], bool] = lambda _: True
    # In place of `find`, for what is no score: comparisons that are judged already, in this unit.
    compare: Callable[[Evidence], list[Comparison]] = lambda _: []
    unit: str = "points"


def _asks_for_words(kind: Kind) -> bool:
    """Return whether each answer is about a word in its context."""
    is_about_word = kind.unit == "word" and not issubclass(kind.answer, SpanAnswer)
    return is_about_word and kind.answer.answered_by == "head"


def _asks_for_words_or_spans(kind: Kind) -> bool:
    return _asks_for_words(kind) or issubclass(kind.answer, SpanAnswer)


def _asks_for_texts(kind: Kind) -> bool:
    """Return whether each answer is about a whole text."""
    return kind.answer.answered_by == "head" and not _asks_for_words_or_spans(kind)


def _has_not_many_more_labels(planned: PlannedComparison) -> bool:
    """Return whether there are about ten times the labels: losing to more is no contradiction."""
    return planned.second.train_examples < 1.5 * MORE_LABELS * planned.first.train_examples


def _is_not(value: Any) -> Callable[[Any], bool]:
    return lambda other: bool(other != value)


def _is_above(limit: float) -> Callable[[Any], bool]:
    return lambda other: other is not None and bool(other > limit)


def _find_pretrained(evidence: Evidence) -> Iterator[PlannedComparison]:
    """Yield all uses that learn from labels."""
    for one in evidence.find("pretraining"):
        if one.first.label_count != "none":
            yield one


def _find_two_directions(evidence: Evidence) -> Iterator[PlannedComparison]:
    """Yield bidirectional models beside left-to-right ones of the same kind of network."""
    # Not ELMo beside ULMFiT: ELMo also reads characters.
    for first, second in (("bert", "gpt"), ("bert_modern", "gpt_modern")):
        yield from evidence.find_families((first,), (second,), suits=_asks_for_words)
    yield from evidence.find_changes("architecture.direction", _is_not("left_to_right"))


def _find_masked_on_spans(evidence: Evidence) -> Iterator[PlannedComparison]:
    for first, second in (("bert", "gpt"), ("bert_modern", "gpt_modern")):
        yield from evidence.find_families(
            (first,), (second,), suits=_asks_for_words_or_spans, transfer="finetuned"
        )


def _find_bert_on_texts(evidence: Evidence) -> Iterator[PlannedComparison]:
    for first, second in (("bert", "gpt"), ("bert_modern", "gpt_modern")):
        yield from evidence.find_families(
            (first,), (second,), suits=_asks_for_texts, transfer="finetuned"
        )


def _find_transformers(evidence: Evidence) -> Iterator[PlannedComparison]:
    """Yield Transformers beside LSTMs that read in the same directions."""
    yield from evidence.find_changes(
        "architecture.contextualizer", _is_not("lstm"), with_keys=LSTM_KEYS
    )


def _find_transformers_over_distance(evidence: Evidence) -> Iterator[PlannedComparison]:
    yield from evidence.find_over_distance(_find_transformers(evidence))
    left_to_right = evidence.find_families(("gpt", "gpt_modern"), ("ulmfit",))
    yield from evidence.find_over_distance(left_to_right)


# The questions that readers of these papers ask, each with the claims that answer it.
QUESTIONS: dict[str, tuple[Claim, ...]] = {
    "Where do static vectors fail, and contextual ones not?": (
        Claim(
            "Contextual vectors are better than static ones where context decides.",
            "Peters et al. 2018, table 1",
            "named entities, F1: 90.2, with ELMo 92.2",
            lambda evidence: evidence.find_families(
                CONTEXTUAL, STATIC, suits=_asks_for_words, transfer="frozen"
            ),
        ),
    ),
    "What are characters good for?": (
        Claim(
            "Vectors of character n-grams are better than vectors of whole words.",
            "Bojanowski et al. 2017, table 1",
            "English rare words, correlation: 43, with n-grams 47",
            lambda evidence: evidence.find_families(("fasttext",), ("word2vec",)),
        ),
        Claim(
            "Characters are better than a table of words.",
            "Peters et al. 2018, section 3.2",
            "no number",
            lambda evidence: evidence.find_changes("architecture.input_unit", _is_not("words")),
        ),
    ),
    "Do layers differ?": (
        Claim(
            "A mix of all layers is better than the top layer.",
            "Peters et al. 2018, table 2",
            "SQuAD, F1: 84.7, with all layers 85.2",
            lambda evidence: evidence.find_changes(
                "evaluate.linear_probe.features", _is_not("last")
            ),
        ),
    ),
    "Which of ULMFiT's techniques help?": (
        Claim(
            "Going on with the text of the task helps.",
            "Howard and Ruder 2018, table 6",
            "IMDb, error: 6.99 %, with this, lower and slanted rates 5.00 %",
            lambda evidence: evidence.find("adaptation"),
        ),
        Claim(
            "General text helps before the text of the task.",
            "Howard and Ruder 2018, table 4",
            "TREC-6, error: 10.67 %, with general text 5.69 %",
            lambda evidence: evidence.find("general_text"),
        ),
        Claim(
            "Lower learning rates for lower layers help.",
            "Howard and Ruder 2018, table 7",
            "IMDb, error: 6.87 %, with them 5.57 %",
            lambda evidence: evidence.find_changes(
                "evaluate.finetune.layer_lr_decay", lambda value: value not in (None, 1)
            ),
        ),
        Claim(
            "Unfreezing layers one by one helps.",
            "Howard and Ruder 2018, table 7",
            "IMDb, error: 6.87 %, one by one 6.37 %",
            lambda evidence: evidence.find_changes(
                "evaluate.finetune.gradual_unfreezing", _is_above(0)
            ),
        ),
        Claim(
            "A slanted triangular learning rate helps.",
            "Howard and Ruder 2018, table 7",
            "IMDb, error: 6.37 %, with it 5.04 %",
            lambda evidence: evidence.find_changes("evaluate.finetune.ratio", _is_not(1.0)),
        ),
    ),
    "Does pretraining help tasks as different as sentiment and parts of speech?": (
        Claim(
            "Pretraining is better than random weights.",
            "Dai and Le 2015, table 2",
            "IMDb, error: LSTM 13.5 %, pretrained 7.2 %",
            _find_pretrained,
        ),
        Claim(
            "Longer training on more text helps.",
            "Raffel et al. 2020, table 9",
            "GLUE, mean: 76.3 with 8 million tokens, again and again; 83.3 with all",
            lambda evidence: evidence.find_more_text(),
            unit=AT_MOST,
        ),
        Claim(
            "The order of words in the pretraining text helps.",
            "Sinha et al. 2021, table 1",
            "no number; the opposite: on GLUE, shuffled words lose little",
            lambda evidence: evidence.find_changes("tokenizer.shuffle_words", _is_not(True)),
        ),
    ),
    "With few labels, is it better than training from scratch?": (
        Claim(
            "Pretraining is worth more than ten times the labels.",
            "Howard and Ruder 2018, figure 3",
            "IMDb: 100 labels as good as 1,000 from scratch",
            lambda evidence: evidence.find_fewer_labels(MORE_LABELS),
            has_opposite=_has_not_many_more_labels,
        ),
        Claim(
            "Pretraining saves epochs of learning from labels.",
            "Peters et al. 2018, section 5.4",
            "semantic roles: 486 epochs, as good after 10 with ELMo's features",
            compare=lambda evidence: evidence.compare_epochs(),
            unit="% of the epochs",
        ),
    ),
    "Which ideas still matter?": (
        Claim(
            "Reading both directions is better than reading one.",
            "Devlin et al. 2019, table 5",
            "SQuAD, F1: 77.8, with both directions 87.9",
            _find_two_directions,
        ),
        Claim(
            "One network for both directions is better than two that are joined.",
            "Devlin et al. 2019, section 5.1",
            "no number",
            lambda evidence: evidence.find_changes(
                "architecture.direction", _is_not("concatenated")
            ),
        ),
        Claim(
            "For spans, masked language models are better than left-to-right ones.",
            "Devlin et al. 2019, table 5",
            "SQuAD, F1: 77.8, masked 87.9",
            _find_masked_on_spans,
        ),
        Claim(
            "BERT is better than GPT on texts.",
            "Devlin et al. 2019, table 1",
            "GLUE, mean: 75.1, BERT 79.6",
            _find_bert_on_texts,
        ),
        Claim(
            "Next-sentence prediction helps.",
            "Devlin et al. 2019, table 5",
            "QNLI: 84.9 %, with it 88.4 %",
            lambda evidence: evidence.find_changes(
                "pretrain.next_sentence_prediction", _is_not(False)
            ),
        ),
        Claim(
            "Transformers are better than LSTMs.",
            "Radford et al. 2018, table 5",
            "mean of the tasks: 69.1, Transformer 74.7",
            _find_transformers,
        ),
        Claim(
            "Over long distances, Transformers are better than LSTMs.",
            "van Schijndel et al. 2019, abstract",
            "no number; the opposite: in some constructions GPT and BERT are worse than LSTMs",
            _find_transformers_over_distance,
        ),
        Claim(
            "Leaving some hidden words as they are, or replacing them by others, helps.",
            "Devlin et al. 2019, table 8",
            "no number is quoted here",
            lambda evidence: evidence.find_changes(
                "pretrain.mask_replacement.mask",
                _is_not(1.0),
                with_keys=["pretrain.mask_replacement.random"],
            ),
        ),
        Claim(
            "New masks in every epoch are better than the same ones.",
            "Liu et al. 2019, table 1",
            "SQuAD 2.0, F1: 78.3, new masks 78.7",
            lambda evidence: evidence.find_changes("pretrain.dupe_factor", _is_not(1)),
        ),
        Claim(
            "More masks than 15 % help.",
            "Wettig et al. 2023, of large models",
            "MNLI: 84.2 %, with 40 % masks 84.5 %",
            lambda evidence: evidence.find_changes("pretrain.mlm_probability", _is_above(0.15)),
        ),
        Claim(
            "Language models know more grammar than 5-grams.",
            "Warstadt et al. 2020, table 3",
            "BLiMP: 5-gram model 61.2 %, LSTM 69.8 %",
            # Those that predict text better than 5-grams are a selection.
            lambda evidence: evidence.find("kneser_ney", weak_too=True),
        ),
        Claim(
            "Predicting masked words and next words together is better than either.",
            "Charpentier and Samuel 2024, table 1",
            "BLiMP, 10 M words: masked alone 80.6 %, both 81.2 %",
            lambda evidence: evidence.find_families(("gpt_bert",), ("gpt_modern", "bert_modern")),
        ),
        Claim(
            "Today's recipe is better than that of 2018.",
            "Jordan et al. 2024, and others",
            "no number on so little text",
            lambda evidence: evidence.find_successors(),
        ),
    ),
}


def judge_claims(evidence: Evidence) -> tuple[ClaimFinding, ...]:
    """Return the claims that a study has comparisons for, in the order of QUESTIONS.

    The comparisons of a claim are made again, as one family. What the page says of a comparison
    elsewhere must hold too, with the correction that it has there.
    """
    elsewhere = {
        _key(each): each for one in evidence.analysis.comparisons for each in (one, one.reversed())
    }
    # A claim may have one comparison in a setting, which says little about how seeds vary.
    all_scores = [
        scores
        for scores in _pair_all(evidence.planned)
        if scores.planned.first.system.family not in UNMATCHED_FAMILIES
    ]
    found = []
    for question, claim in _list_claims():
        family = _pair_all(claim.find(evidence))
        judged = compare_family(family, moderated_by=all_scores)
        comparisons = [_weaken(one, elsewhere.get(_key(one), one)) for one in judged]
        num_excused = sum(
            one.verdict == "worse" and not claim.has_opposite(scores.planned)
            for one, scores in zip(comparisons, family, strict=True)
        )
        comparisons += claim.compare(evidence)
        if comparisons:
            finding = ClaimFinding(
                question,
                claim.text,
                claim.source,
                claim.published,
                tuple(comparisons),
                num_excused,
                claim.unit,
            )
            found.append(finding)
    return tuple(found)


def _weaken(one: Comparison, elsewhere: Comparison) -> Comparison:
    """Return a comparison that shows no more than it does with its correction elsewhere."""
    if one.verdict == elsewhere.verdict:
        return one
    return replace(
        one,
        ci_low=min(one.ci_low, elsewhere.ci_low),
        ci_high=max(one.ci_high, elsewhere.ci_high),
        verdict="no significant difference",
    )


def _list_claims() -> Iterator[tuple[str, Claim]]:
    for question, claims in QUESTIONS.items():
        for claim in claims:
            yield question, claim


def _key(comparison: Comparison) -> tuple[Any, ...]:
    one = comparison
    return one.comparison_type, one.setting, one.first, one.second


def _pair_all(planned: Iterable[PlannedComparison]) -> list[PairedScores]:
    """Return the scores of those that share seeds and items."""
    return [scores for scores in map(pair_scores, planned) if scores is not None]
