"""Shared code of the benchmarks: timing, tables, and data."""

import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def best_time(function: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Shortest time of several calls, in seconds, of wall time or another clock."""
    times = []
    for _ in range(repeats):
        began = clock()
        function()
        times.append(clock() - began)
    return min(times)


@dataclass
class Table:
    """A Markdown table with a title. `formats` belong to the columns, and None is an empty cell."""

    title: str
    columns: tuple[str, ...]
    formats: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    @property
    def cells(self) -> list[list[str]]:
        """Rows as text."""
        return [
            ["" if x is None else format(x, f) for x, f in zip(row, self.formats, strict=True)] for row in self.rows
        ]

    def __str__(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.cells]
        return "\n".join([f"## {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines)])


def read_csv(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Standardised features (n, d) and labels 0…c−1 (n,) of a file with a header and labels in its last column.

    Constant columns are dropped.
    """
    with file.open(newline="") as lines:
        _, *rows = csv.reader(lines)
    X = np.array([[float(value) for value in row[:-1]] for row in rows])
    X = X[:, X.std(axis=0) > 0]
    _, y = np.unique([row[-1] for row in rows], return_inverse=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y
