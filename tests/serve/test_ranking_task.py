"""A task more is a class and a line in the table: entries of it are written, checked and answered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pytest
import triton_stub as stub

from sparse_serve.data import TextData
from sparse_serve.repository.check import Level, check_entry
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.rows import RowFormat, TextRows
from sparse_serve.tasks import TASKS, Columns, EncodedText, OutputTensor, Task
from sparse_serve.triton.preflight import servable_models

TRITON = Path(str(files("sparse_serve") / "triton"))


@dataclass(frozen=True)
class Ranking(Task):
    """The tokens of a text by their first logit, the largest first: `top` of them."""

    type: ClassVar[str] = "ranking"
    option: ClassVar[str] = "ranking"
    by_token: ClassVar[bool] = True
    text_pair = "refused"
    rows: ClassVar[RowFormat] = TextRows(str)
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    top: int = 2

    @classmethod
    def of(cls, data: TextData) -> Self:
        return cls()

    @property
    def width(self) -> int:
        return 1

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        return (OutputTensor("positions", "INT32", (self.top,)),)

    def answer(self, encoded: Sequence[EncodedText], output: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        rows = [
            np.argsort(-logits[: text.token_count, 0])[: self.top]
            for text, logits in zip(encoded, output, strict=True)
        ]
        return {"positions": np.array(rows, dtype=np.int32)}

    def evaluate(self, columns: Columns, targets: npt.NDArray[Any]) -> dict[str, float]:
        return {"accuracy": float((columns["positions"][:, 0] == targets).mean())}


def test_a_new_task_is_served(
    tmp_path: Path, make_spec: Callable[..., EntrySpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, Ranking.type, Ranking)
    public = write_entry(tmp_path, make_spec(Ranking(top=3), name="ranks"))
    assert read_entry(public).manifest.task == Ranking(top=3)
    assert not [finding for finding in check_entry(public) if finding.level is not Level.ok]
    assert servable_models(tmp_path) == ("ranks", "ranks_model")

    monkeypatch.setattr(stub.Request, "call", stub.Graph(tmp_path / "ranks_model"), raising=False)
    front = stub.load_model(TRITON / "text_backend" / "model.py", public)
    texts = np.array([[b"w1 w2 w3"], [b"w4"]], np.object_)
    request = stub.Request([stub.Tensor("TEXT", texts)], ("positions", "token_count"))
    arrays = front.execute([request])[0].arrays()
    assert arrays["token_count"][:, 0].tolist() == [5, 3]
    assert arrays["positions"].shape == (2, 3)
    assert sorted(arrays["positions"][1].tolist()) == [0, 1, 2]
