"""The records of a page: sections of paragraphs, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lineage.analysis.decision import Costs, Decision
from lineage.analysis.disagreements import Disagreements
from lineage.analysis.neighbours import OccurrenceText
from lineage.analysis.records import Analysis
from lineage.config.params import Params
from lineage.report.provenance import Provenance

# Where something is shown, if not everywhere. Markdown has no figures, and does not fold.
Only = Literal["", "html", "markdown"]


@dataclass(frozen=True)
class Refit:
    """A recommended system that was fitted again, for use, on more items than the scored ones."""

    task: str
    label_count: str
    system: str  # its name, as `lineage predict --list` has it
    train_examples: int
    scored_examples: int
    finetune_seed: int
    num_seeds: int  # over which the score is the mean


@dataclass(frozen=True)
class ReportData:
    """All that a section may show."""

    analysis: Analysis
    decisions: Sequence[Decision] = ()
    costs: Costs = field(default_factory=dict)
    provenance: Provenance | None = None
    disagreements: Sequence[Disagreements] = ()
    refits: Sequence[Refit] = ()
    params: Params | None = None
    occurrences: Sequence[OccurrenceText] = ()

    @property
    def confidence(self) -> str:
        """Return the confidence level of intervals: `95 %`."""
        return f"{round(100 * self.analysis.confidence_level)} %"

    @property
    def margin(self) -> str:
        """Return the margin of equivalence in points: `2`."""
        return f"{100 * self.analysis.equivalence_margin:g}"


@dataclass(frozen=True)
class Piece:
    """A part of a cell with a style of its own."""

    text: str
    css: str = ""
    title: str = ""  # shown under the pointer
    is_strong: bool = False
    is_small: bool = False
    plain: str = " {}"  # how Markdown, which has no small type, adds it to the text before it
    only: Only = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str = ""
    more: Sequence[Piece] = ()  # behind the text
    css: str = ""  # "n" for numbers, "wrap" for long texts; the column's if it is empty
    title: str = ""  # shown under the pointer
    svg: str = ""  # before the text
    span: int = 1  # columns


Cells = Sequence[str | Cell]


@dataclass(frozen=True)
class Row:
    """A line of a table. Without a style of its own, a list of cells is a row too."""

    cells: Cells
    css: str = ""
    title: str = ""
    labels: str = ""  # the numbers of labels at which the page's switch shows it


@dataclass(frozen=True)
class Column:
    """The heading of a column, and the style of its cells."""

    name: str = ""
    css: str = ""
    note: str = ""  # in small type
    short: str = ""  # the heading in Markdown and in narrow windows, if it is another one
    svg: str = ""

    @property
    def is_number(self) -> bool:
        return self.css == "n"


Columns = Sequence[str | Column]
Rows = Sequence[Row | Cells]


@dataclass(frozen=True)
class Table:
    """A table. The first cell of each row names it. A text is a column of texts."""

    columns: Columns
    rows: Rows
    title: str = ""
    subtitle: str = ""
    lead: str = ""  # above the table
    note: str = ""  # below the table on the page, and above it in Markdown
    css: str = ""
    is_wide: bool = False  # as wide as the page
    has_row_names: bool = True
    has_filter: bool = False  # a field to search its rows
    labels: str = ""  # as of a row
    only: Only = ""


@dataclass(frozen=True)
class Paragraph:
    """A text. With `has_markup` it has `**strong**`, code in backticks and `[links](#anchor)`.

    Texts of users never have markup.
    """

    text: str
    css: str = ""  # note | muted | worse | strong | lead
    has_markup: bool = False
    labels: str = ""  # as of a row
    only: Only = ""


@dataclass(frozen=True)
class Figure:
    """A figure, and a sentence that says what it shows."""

    svg: str
    caption: str = ""
    name: str = ""  # in Markdown, which shows the sentence alone


@dataclass(frozen=True)
class Figures:
    """Figures next to each other. A text is the SVG of a figure without a sentence."""

    figures: Sequence[Figure | str]
    css: str = ""  # few | forest | wide
    caption_below: bool = False
    file: str = ""  # the name of their files in MLflow; empty: none
    labels: str = ""  # as of a row
    only: Only = ""


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    values: Mapping[str, str]
    only: Only = ""


@dataclass(frozen=True)
class Section:
    """A part of the page, or of another section."""

    title: str = ""
    blocks: Sequence[Block] = ()
    titles: Mapping[str, str] = field(default_factory=dict)  # on the page, by number of labels
    subtitle: str = ""  # in small type
    aside: Sequence[Paragraph] = ()  # next to the blocks in a wide window
    label: str = ""  # its name for screen readers, if it has no title
    anchor: str = ""  # the id of its element
    link: str = ""  # its name in the links at the top
    css: str = ""
    # Numbers of labels to choose from, each with what the page calls it.
    switch: Mapping[str, str] = field(default_factory=dict)
    is_folded: bool = False  # with a link, it is a part of the page, and else of another section
    is_open: bool = False  # of a folded one
    is_page: bool = False  # its title is that of the page
    only: Only = ""


Block = Section | Paragraph | Table | Figures | Facts


def as_figure(figure: Figure | str) -> Figure:
    """Return a figure as a record."""
    return Figure(figure) if isinstance(figure, str) else figure


def as_column(column: str | Column) -> Column:
    """Return a column as a record."""
    return Column(column) if isinstance(column, str) else column


def as_row(row: Row | Cells) -> Row:
    """Return a row as a record."""
    return row if isinstance(row, Row) else Row(row)


def as_cell(cell: str | Cell) -> Cell:
    """Return a cell as a record."""
    return Cell(cell) if isinstance(cell, str) else cell


def numbers(*names: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(name, "n") for name in names]


def small(text: str, css: str = "", *, plain: str = " ({})") -> list[Piece]:
    """Return a text in small type as what stands behind the text of a cell; nothing if it is empty."""
    return [Piece(text, css, is_small=True, plain=plain)] if text else []
