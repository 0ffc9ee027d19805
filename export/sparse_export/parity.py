"""The gate in front of the repository: the exported graph against the torch model.

Three executions see the same texts: torch (padded, the specification), ONNX Runtime with the op library, and
stock ONNX Runtime, which inlines the model-local functions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from sparse_export.attention import zero_shares
from sparse_export.checkpoint import AttentionSpec, task_of
from sparse_export.families import input_names
from sparse_serve.errors import CheckpointError, GateError
from sparse_serve.metrics import answers, headline, task_metrics
from sparse_serve.repository.manifest import Dtype

Logits = npt.NDArray[np.float32]
Encoding = dict[str, list[int]]

# Float16 rounds every tensor between two operators to 11 bits: measured up to 0.003 on fine-tuned encoders.
DEFAULT_ATOL: Mapping[Dtype, float] = {"fp32": 1e-4, "fp16": 1e-2}
# Padded tokens of one batch: torch and the fallback form N² scores.
_BATCH_TOKENS = 1024
_LENGTHS = (3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256)
_LONGEST = 512
# Rounding may move single keys across the threshold; the share of zeros moves by far less than this.
_RHO_ATOL = 0.005
# Masks that begin with a hole or have some: left padding, every third token, the last token alone.
_HIDDEN = ("01111", "00011", "101", "0")
_ODD_TEXTS = (
    "",
    " \t\n ",
    "a",
    "¿Qué? — naïve café",
    "雪が降る。 🎬🍿",
    "x" * 300,
    "no no no " * 20,
    "\u0000\u200b\ufeff",
)


@dataclass(frozen=True)
class Agreement:
    """One runtime held against torch.

    Attributes:
        max_abs_diff: the largest |Δlogit|.
        label_agreement: share of rows with the same label, or labels; None for regression, which has none.
        metrics: the task metrics of this runtime by name, where labels were given.
    """

    max_abs_diff: float
    label_agreement: float | None
    metrics: dict[str, float] | None


@dataclass(frozen=True)
class ParityReport:
    """What the gate saw.

    Attributes:
        rows: number of texts.
        longest: tokens of the longest text.
        atol: the accepted |Δlogit|.
        metric: name of the metric that the task is known by, one of `metrics`.
        torch_metrics: the task metrics of the torch model by name, where labels were given.
        library: ONNX Runtime with the op library.
        portable: stock ONNX Runtime.
        rho_torch: share of exactly zero attention weights per layer in torch, mean over rows.
        rho: the same as the graph answers it with the op library.
    """

    rows: int
    longest: int
    atol: float
    metric: str
    torch_metrics: dict[str, float] | None
    library: Agreement
    portable: Agreement
    rho_torch: list[float]
    rho: list[float]

    def require(self) -> None:
        """Raise `GateError` unless both runtimes are within the threshold, and ρ is what torch's is.

        Within it a label can differ only where torch's two best logits are closer than twice the threshold.
        """
        for name, side in (("with the op library", self.library), ("without it", self.portable)):
            if not math.isfinite(side.max_abs_diff):
                raise GateError(
                    f"parity not met: a logit of torch or of ONNX Runtime {name} is not finite (in fp16 "
                    "numbers above 65504 overflow, --dtype fp32 has room for them); nothing was written"
                )
            if not side.max_abs_diff <= self.atol:
                raise GateError(
                    f"parity not met: ONNX Runtime {name} differs from torch by up to "
                    f"{side.max_abs_diff:.3g} in a logit over {self.rows} texts, accepted is {self.atol:g} "
                    "(--atol); nothing was written"
                )
        for layer, (served, expected) in enumerate(zip(self.rho, self.rho_torch, strict=True), start=1):
            if not abs(served - expected) <= _RHO_ATOL:
                raise GateError(
                    f"parity not met: layer {layer} of the graph has a share of {served:.4f} zero attention "
                    f"weights, torch of {expected:.4f}; accepted is a difference of {_RHO_ATOL:g}; "
                    "nothing was written"
                )


@dataclass(frozen=True)
class Examples:
    """Tokenised texts, and what the model should answer to them (`Task.targets`), where that is known."""

    encodings: Sequence[Encoding]
    targets: npt.NDArray[Any] | None = None


def builtin_examples(tokenizer: PreTrainedTokenizerFast, max_length: int, texts: Sequence[str]) -> Examples:
    """Make examples of many lengths, up to `max_length` or 512 tokens, from `texts` and from odd input.

    Some are pairs, so that the segment ids of those models that have any are seen.
    """
    corpus = " ".join(texts)
    longest = min(max_length, _LONGEST)
    lengths = [*(length for length in _LENGTHS if length < longest), longest]
    encodings = [_encode(tokenizer, corpus, length) for length in lengths]
    encodings += [_encode(tokenizer, text, max_length) for text in _ODD_TEXTS]
    encodings += [
        _encode(tokenizer, text, cut, pair)
        for text, pair, cut in (
            (texts[0], texts[-1], longest),
            ("", texts[0], longest),
            (corpus, texts[0], longest),
            (texts[-1], corpus, min(longest, 64)),
        )
    ]
    encodings += [_hide(encodings[index], pattern) for index, pattern in enumerate(_HIDDEN, start=1)]
    # Every batch mixes lengths, as a server's batches do.
    return Examples([encodings[index] for index in np.random.default_rng(0).permutation(len(encodings))])


def encode_examples(
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    texts: Sequence[tuple[str, str]],
    targets: npt.NDArray[Any] | None = None,
) -> Examples:
    """Tokenise texts and, where not empty, their second texts, cut to `max_length` tokens together."""
    return Examples([_encode(tokenizer, text, max_length, pair) for text, pair in texts], targets)


def check_parity(
    model: PreTrainedModel,
    graph: Path,
    op_library: Path,
    examples: Examples,
    atol: float = DEFAULT_ATOL["fp32"],
) -> ParityReport:
    """Run torch, ONNX Runtime with the op library and stock ONNX Runtime on the same examples.

    Args:
        model: the classifier, as `checkpoint.load_classifier` gives it.
        graph: its packed ONNX graph.
        op_library: path of `libsparse_ops.so`.
        examples: tokenised texts.
        atol: accepted |Δlogit|, recorded in the report.
    """
    batches = list(_batches(examples.encodings, model.config))
    expected, rho_torch = _run_torch(model, batches)
    with_library, rho = _run_graph(graph, op_library, batches)
    portable, _ = _run_graph(graph, None, batches)

    problem_type = task_of(model.config).problem_type

    def metrics(logits: Logits) -> dict[str, float] | None:
        return None if examples.targets is None else task_metrics(problem_type, logits, examples.targets)

    def agreement(logits: Logits) -> Agreement:
        same = None
        if problem_type != "regression":
            both = answers(problem_type, logits) == answers(problem_type, expected)
            same = float(both.reshape(len(both), -1).all(1).mean())
        return Agreement(float(np.abs(logits - expected).max()), same, metrics(logits))

    return ParityReport(
        rows=len(examples.encodings),
        longest=max(len(encoding["input_ids"]) for encoding in examples.encodings),
        atol=atol,
        metric=headline(problem_type),
        torch_metrics=metrics(expected),
        library=agreement(with_library),
        portable=agreement(portable),
        rho_torch=rho_torch.mean(0).tolist(),
        rho=rho.mean(0).tolist(),
    )


def twin_difference(model: PreTrainedModel, graph: Path, op_library: Path, examples: Examples) -> float:
    """Return the largest |Δlogit| between a softmax twin's graph and the softmax torch model."""
    batches = list(_batches(examples.encodings, model.config))
    expected, _ = _run_torch(model, batches)
    logits, _ = _run_graph(graph, op_library, batches)
    return float(np.abs(logits - expected).max())


def _encode(tokenizer: PreTrainedTokenizerFast, text: str, max_length: int, pair: str = "") -> Encoding:
    encoded = tokenizer(text, pair or None, truncation=True, max_length=max_length, padding=False)
    ids = encoded["input_ids"]
    return {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "token_type_ids": encoded.get("token_type_ids", [0] * len(ids)),
    }


def _hide(encoding: Encoding, pattern: str) -> Encoding:
    """Mask the tokens of an encoding where the repeated pattern has a 0; its last token stays."""
    mask = [int(bit) for bit, _ in zip(cycle(pattern), encoding["input_ids"], strict=False)]
    return encoding | {"attention_mask": [*mask[:-1], 1]}


def _batches(
    encodings: Sequence[Encoding], config: PreTrainedConfig
) -> Iterator[dict[str, npt.NDArray[np.int64]]]:
    rows: list[Encoding] = []
    longest = 0
    for encoding in encodings:
        length = len(encoding["input_ids"])
        if rows and (len(rows) + 1) * max(longest, length) > _BATCH_TOKENS:
            yield _pad(rows, longest, config)
            rows, longest = [], 0
        rows.append(encoding)
        longest = max(longest, length)
    if rows:
        yield _pad(rows, longest, config)


def _pad(rows: Sequence[Encoding], length: int, config: PreTrainedConfig) -> dict[str, npt.NDArray[np.int64]]:
    batch = {name: np.zeros((len(rows), length), np.int64) for name in input_names(config)}
    batch["input_ids"][:] = config.pad_token_id or 0
    for index, row in enumerate(rows):
        for name, values in batch.items():
            values[index, : len(row[name])] = row[name]
    return batch


@torch.no_grad()
def _run_torch(
    model: PreTrainedModel, batches: Sequence[dict[str, npt.NDArray[np.int64]]]
) -> tuple[Logits, npt.NDArray[np.float32]]:
    sparse = AttentionSpec.from_config(model.config).kind != "softmax"
    logits, rho = [], []
    for batch in batches:
        inputs = {name: torch.from_numpy(values) for name, values in batch.items()}
        outputs = model(**inputs, output_attentions=sparse)
        logits.append(outputs.logits.numpy())
        if sparse:
            rho.append(zero_shares(outputs.attentions, inputs["attention_mask"]).numpy())
        else:
            rho.append(np.zeros((len(outputs.logits), model.config.num_hidden_layers), np.float32))
    return np.concatenate(logits), np.concatenate(rho)


def _run_graph(
    graph: Path, op_library: Path | None, batches: Sequence[dict[str, npt.NDArray[np.int64]]]
) -> tuple[Logits, npt.NDArray[np.float32]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if op_library is not None:
        options.register_custom_ops_library(str(op_library))
    try:
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"ONNX Runtime does not load the exported graph: {reason}") from error
    names = [output.name for output in session.get_outputs()]
    rows = [dict(zip(names, session.run(names, batch), strict=True)) for batch in batches]
    logits = np.concatenate([row["logits"] for row in rows])
    rho = np.concatenate([row.get("rho", np.zeros((len(row["logits"]), 0), np.float32)) for row in rows])
    return logits, rho
