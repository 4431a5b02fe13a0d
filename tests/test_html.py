"""Sections -> one HTML page."""

from lineage.report.html import render_page
from lineage.report.section import (
    Cell,
    Column,
    Figure,
    Figures,
    Paragraph,
    Piece,
    Row,
    Section,
    Table,
    numbers,
)


def render(*blocks: Paragraph | Table | Figures | Section, **fields: object) -> str:
    section = Section(blocks=blocks, **fields)  # type: ignore[arg-type]
    return render_page([section], study="a study").partition("a study</p>")[2]


def test_texts_are_escaped_with_and_without_markup() -> None:
    assert "<p>&lt;i&gt; **a** `b`</p>" in render(Paragraph("<i> **a** `b`"))
    text = "<i> **a** `b` [below](#failed)"
    expected = '<p>&lt;i&gt; <b>a</b> <code>b</code> <a href="#failed">below</a></p>'
    assert expected in render(Paragraph(text, has_markup=True))
    assert 'title="&quot;&lt;"' in render(Table(["x"], [Row(["a"], title='"<')]))


def test_the_first_cell_names_its_row_and_others_have_the_style_of_their_column() -> None:
    cell = Cell("2", [Piece("<better>", "better", is_small=True)], css="n worse")
    page = render(Table(["x", *numbers("y", "z")], [["a", "1", cell]]))
    assert '<tr><th>x</th><th class="n">y</th><th class="n">z</th></tr>' in page
    assert (
        '<tr><th scope="row">a</th><td class="n">1</td>'
        '<td class="n worse">2 <small class="better">&lt;better&gt;</small></td></tr>'
    ) in page
    unnamed = render(Table(["x"], [["a"]], has_row_names=False))
    assert "<tr><td>a</td></tr>" in unnamed


def test_a_narrow_window_has_the_short_headings_beside_the_cells() -> None:
    page = render(Table(["x", Column("a long name", short="short")], [["a", "1"]]))
    assert "<th>a long name</th>" in page and '<td data-head="short">1</td>' in page


def test_what_belongs_to_markdown_is_left_out_and_parts_can_be_folded() -> None:
    folded = Section("Details", [Paragraph("inside")], is_folded=True)
    page = render(folded, Paragraph("elsewhere", only="markdown"))
    assert "<summary>Details</summary>\n<div>\n<p>inside</p>\n</div></details>" in page
    assert "elsewhere" not in page


def test_a_section_with_an_aside_is_split_and_linked() -> None:
    section = Section("Data", [Paragraph("b")], aside=[Paragraph("a")], anchor="data", link="Data")
    page = render_page([section], study="")
    assert '<a href="#data">Data</a></nav>' in page
    assert '<section class="split" id="data">\n<div class="side">\n<h2>Data</h2>' in page


def test_a_switch_shows_what_belongs_to_one_number_of_labels() -> None:
    page = render_page([Section(switch={"100": "100", "all": "1,000 to 2,000"})], study="")
    assert 'id="labels-all" checked> 1,000 to 2,000</label>' in page and 'id="labels-100">' in page
    assert "main:has(#labels-100:checked) [data-labels]" in page.partition("</style>")[0]
    assert "#labels-" not in render_page([Section()], study="")


def test_a_figure_has_its_sentence_above_or_below() -> None:
    figure = Figure("<svg/>", "It rises.", "task")
    assert "<figcaption>It rises.</figcaption><svg/>" in render(Figures([figure]))
    below = render(Figures([figure, "<svg2/>"], caption_below=True))
    assert "<svg/><figcaption>It rises.</figcaption></figure>\n<svg2/>" in below


def test_a_title_can_follow_the_choice_of_labels() -> None:
    titles = {"100": "Use <a>", "all": "Use b"}
    page = render(Section("Use b", [Paragraph("text")], titles=titles, is_page=True))
    spans = '<span data-labels="100">Use &lt;a&gt;</span><span data-labels="all">Use b</span>'
    assert f"<h1>{spans}</h1>" in page
