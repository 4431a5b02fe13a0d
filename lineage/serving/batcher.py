"""Answer concurrent requests with few calls of the model."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from lineage.serving.requests import count_characters
from lineage.tasks.columns import TableColumns

# The limit of a call for several requests; a longer one is answered by itself.
MAX_BATCH_ROWS = 256
MAX_BATCH_CHARACTERS = 200_000
AnswerRows = Callable[[TableColumns], TableColumns]


@dataclass(frozen=True)
class _Waiting:
    """A request that waits for the model."""

    columns: TableColumns
    answers: asyncio.Future[TableColumns]


class Batcher:
    """Calls a model in a thread of its own, for all requests that arrived during the call before.

    After an error, each request of the call is answered by itself.
    """

    def __init__(self, answer_rows: AnswerRows) -> None:
        self._answer_rows = answer_rows
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._work: asyncio.Task[None] | None = None  # None: nothing is being answered

    async def answer(self, columns: TableColumns) -> TableColumns:
        """Return the new columns of a request. Raises what the model raises for these rows."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(columns, loop.create_future())
        self._waiting.append(waiting)
        if self._work is None:
            self._work = loop.create_task(self._answer_waiting())
        return await waiting.answers

    async def _answer_waiting(self) -> None:
        """Call the model until no request waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._take_batch()
            tables = [waiting.columns for waiting in batch]
            results = await loop.run_in_executor(self._thread, self._answer_tables, tables)
            for waiting, result in zip(batch, results, strict=True):
                if waiting.answers.cancelled():
                    continue
                if isinstance(result, Exception):
                    waiting.answers.set_exception(result)
                else:
                    waiting.answers.set_result(result)
        self._work = None

    def _take_batch(self) -> list[_Waiting]:
        """Return the first request that waits, and those after it that fit into the same call."""
        batch: list[_Waiting] = []
        num_rows = 0
        num_characters = 0
        while self._waiting:
            columns = self._waiting[0].columns
            num_rows += _count_rows(columns)
            num_characters += count_characters(columns)
            is_full = num_rows > MAX_BATCH_ROWS or num_characters > MAX_BATCH_CHARACTERS
            if batch and is_full:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _answer_tables(self, tables: Sequence[TableColumns]) -> list[TableColumns | Exception]:
        """Return the answers to each table, or the error that it causes."""
        if len(tables) > 1:
            try:
                return list(self._answer_together(tables))
            except Exception:  # which table causes it, and what it is, is found below
                pass
        return [self._answer_alone(table) for table in tables]

    def _answer_together(self, tables: Sequence[TableColumns]) -> Iterator[TableColumns]:
        joined = {name: [cell for table in tables for cell in table[name]] for name in tables[0]}
        answers = self._answer_rows(joined)
        cells = {name: iter(values) for name, values in answers.items()}
        for table in tables:
            num_rows = _count_rows(table)
            yield {name: list(islice(values, num_rows)) for name, values in cells.items()}

    def _answer_alone(self, table: TableColumns) -> TableColumns | Exception:
        try:
            return self._answer_rows(table)
        except Exception as error:  # the request gets it
            return error


def _count_rows(columns: TableColumns) -> int:
    return len(next(iter(columns.values())))
