"""Sections -> Markdown."""

from lineage.report.markdown import escape_cell, render_page
from lineage.report.section import (
    Cell,
    Facts,
    Figure,
    Figures,
    Paragraph,
    Piece,
    Section,
    Table,
    numbers,
    small,
)


def test_html_of_a_label_is_shown_as_text() -> None:
    text = escape_cell("<img src=x onerror=alert(1)> | a\nb")
    assert text == "&lt;img src=x onerror=alert(1)> \\| a b"


def test_a_table_has_its_note_above_and_the_plain_form_of_its_cells() -> None:
    cell = Cell("a", [*small("100 labels", plain=", {}"), *small("public")])
    strong = Cell(more=[Piece("1.0", is_strong=True), Piece("%")])
    table = Table(["x", *numbers("y")], [[cell, strong]], title="T", subtitle="s", note="See `z`.")
    assert render_page([Section(blocks=[table])]) == (
        "T, s:\n\nSee `z`.\n\n| x | y |\n|---|---:|\n| a, 100 labels (public) | **1.0** % |\n"
    )


def test_a_folded_part_has_no_heading_and_an_empty_section_is_left_out() -> None:
    folded = Section("Details", [Paragraph("inside")], is_folded=True)
    hidden = Section("Charts", [Figures(["<svg/>"])])
    text = render_page([Section("Title", [folded], subtitle="of it", is_page=True), hidden])
    assert text == "# Title (of it)\n\ninside\n"


def test_figures_have_their_sentences_and_paragraphs_their_weight() -> None:
    blocks = [
        Figures([Figure("<svg/>", "It rises.", "task"), Figure("<svg/>", "", "other")]),
        Paragraph("bad", "worse"),
        Paragraph("**Better**: so", has_markup=True),
        Facts({"python": "3.11"}),
        Paragraph("elsewhere", only="html"),
    ]
    text = render_page([Section(blocks=blocks)])
    assert text == "- task: It rises.\n\n**bad**\n\n*Better*: so\n\n- python: 3.11\n"
