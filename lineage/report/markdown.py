"""Sections -> Markdown, without figures."""

from collections.abc import Iterable, Iterator

from lineage.report.section import (
    Block,
    Cell,
    Cells,
    Column,
    Facts,
    Figures,
    Paragraph,
    Piece,
    Row,
    Section,
    Table,
    as_cell,
    as_column,
    as_figure,
    as_row,
)


def render_page(sections: Iterable[Section]) -> str:
    """Return the page."""
    return "\n\n".join(_texts(sections)) + "\n"


def _texts(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the parts that empty lines separate."""
    for block in blocks:
        if block.only != "html":
            yield from _block_texts(block)


def _block_texts(block: Block) -> Iterator[str]:
    match block:
        case Section():
            yield from _section_texts(block)
        case Table():
            yield from _table_texts(block)
        case Figures():
            captions = [
                f"- {figure.name}: {_escape_html(figure.caption)}"
                for figure in map(as_figure, block.figures)
                if figure.caption
            ]
            if captions:
                yield "\n".join(captions)
        case Paragraph():
            yield _paragraph(block)
        case Facts():
            yield "\n".join(f"- {name}: {value}" for name, value in block.values.items())


def _section_texts(section: Section) -> Iterator[str]:
    """Yield a heading and what is below it; nothing without content, or if all has no heading."""
    texts = [*_texts(section.aside), *_texts(section.blocks)]
    if not texts:
        return
    if section.title and (section.link or not section.is_folded):
        subtitle = f" ({section.subtitle})" if section.subtitle else ""
        level = "#" if section.is_page else "##"
        yield f"{level} {section.title}{subtitle}"
    yield from texts


def _paragraph(paragraph: Paragraph) -> str:
    text = _escape_html(paragraph.text)
    if paragraph.has_markup:
        return text.replace("**", "*")
    is_bold = {"strong", "worse"} & set(paragraph.css.split())
    return f"**{text}**" if is_bold else text


def _table_texts(table: Table) -> Iterator[str]:
    if table.title:
        subtitle = f", {table.subtitle}" if table.subtitle else ""
        yield f"{table.title}{subtitle}:"
    if table.lead:
        yield _paragraph(Paragraph(table.lead))
    if table.note:
        yield _paragraph(Paragraph(table.note, has_markup=True))
    if table.columns:
        columns = [as_column(one) for one in table.columns]
        rules = ["---:" if column.is_number else "---" for column in columns]
        lines = [_line(map(_heading, columns)), f"|{'|'.join(rules)}|"]
        lines += [_line(_row_texts(row)) for row in table.rows]
        yield "\n".join(lines)


def _heading(column: Column) -> str:
    return escape_cell(column.short or column.name)


def format_cell(cell: str | Cell) -> str:
    """Return the text of a cell, with the text behind it."""
    cell = as_cell(cell)
    text = escape_cell(cell.text)
    for piece in cell.more:
        if piece.only != "html":
            text += piece.plain.format(_piece(piece))
    return text.strip()


def _piece(piece: Piece) -> str:
    text = escape_cell(piece.text)
    return f"**{text}**" if piece.is_strong else text


def _row_texts(row: Cells | Row) -> Iterator[str]:
    """Yield the texts of a row; a cell that spans several columns is followed by empty ones."""
    for cell in as_row(row).cells:
        yield format_cell(cell)
        yield from [""] * (as_cell(cell).span - 1)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_cell(text: str) -> str:
    """Return a text for a cell of a table; viewers would run HTML in it."""
    return _escape_html(text.replace("|", "\\|").replace("\n", " "))


def _escape_html(text: str) -> str:
    return text.replace("<", "&lt;")
