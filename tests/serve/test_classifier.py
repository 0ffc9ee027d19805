"""An entry in this process: how texts are given to it."""

from collections.abc import Callable
from typing import Any

import pytest
from test_sample import SAMPLE

from sparse_serve import Classifier


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier(SAMPLE, threads=1)


@pytest.mark.parametrize("one", ["a fine film", b"a fine film"])
def test_one_text_is_not_taken_for_its_characters(classifier: Classifier, one: Any) -> None:
    asked: list[Callable[[], object]] = [
        lambda: classifier(one),
        lambda: classifier(["a fine film"], one),
        lambda: classifier.embed(one),
        lambda: classifier.replies(one),
    ]
    for ask in asked:
        with pytest.raises(TypeError, match=r"one text is given, b?'a fine film', .*: give a list"):
            ask()
