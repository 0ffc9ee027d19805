"""An entry in this process: how texts are given to it, and in which runs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tiny_entry import CLASSES, PAIRS, SAMPLE

from sparse_serve import Classifier
from sparse_serve.errors import RequestError


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier(SAMPLE, threads=1, run_tokens=64)


class Counted(list[str]):
    """Texts that count how many of them are looked at, one at a time."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += not isinstance(place, slice)
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[str]:
        for text in super().__iter__():
            self.looks += 1
            yield text


def test_texts_before_a_run_are_not_gone_through_again(classifier: Classifier) -> None:
    texts = Counted(["a fine film"] * 500)
    runs: list[int] = []
    assert len(classifier(texts, progress=runs.append)) == 500
    assert len(runs) > 20
    assert texts.looks <= 500 + len(runs)


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


@pytest.mark.parametrize(
    ("task", "pairs", "message"),
    [
        ("sentiment", ["", "b"], "task 'sentiment' of the model reads one text: leave out its second one"),
        ("paraphrase", None, "task 'paraphrase' of the model reads pairs: give each text its second one"),
        (["sentiment", "paraphrase"], ["a", "b"], "task 'sentiment' of the model reads one text"),
    ],
)
def test_second_texts_are_of_the_tasks_that_read_them(
    classifier: Classifier,
    monkeypatch: pytest.MonkeyPatch,
    task: Any,
    pairs: list[str] | None,
    message: str,
) -> None:
    tasks = {"sentiment": CLASSES, "paraphrase": PAIRS}
    manifest = classifier.entry.manifest.model_copy(update={"tasks": tasks})
    monkeypatch.setattr(classifier, "entry", replace(classifier.entry, manifest=manifest))
    with pytest.raises(RequestError, match=message):
        classifier(["a", "b"], pairs, task)
