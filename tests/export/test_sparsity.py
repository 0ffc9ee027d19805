"""Of which rows sparsity is measured."""

from typing import Any

import pytest

from sparse_export.training.sparsity import spread


@pytest.mark.parametrize(("count", "most"), [(0, 4), (3, 4), (4, 4), (5, 4), (1500, 512), (1024, 512)])
def test_rows_are_taken_from_all_of_them(count: int, most: int) -> None:
    """Rows may lie by label, or by task: the first ones would be of one alone."""
    rows: list[Any] = list(range(count))
    chosen: list[Any] = list(spread(rows, most))
    assert len(chosen) <= most
    assert chosen == rows if count <= most else max(chosen) >= count - count // len(chosen) - 1
