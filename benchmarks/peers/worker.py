"""A model in a process of its own environment, which times its own calls.

    python worker.py KIND FOLDER

Reads a JSON object a line from stdin and writes one to stdout: `{"texts": [...]}` is answered with their
class probabilities, `{"requests": [[...], ...]}` with the ns of a call with each of them, one after another.
Nothing but the environment's own packages is imported, and of those only what the
kind needs.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_LENGTH = 512
Probabilities = npt.NDArray[np.float32]
Classify = Callable[[Sequence[str]], Probabilities]


def text_graph(folder: Path) -> Classify:
    """Our entry: a graph that takes text, on the op library."""
    import onnxruntime  # noqa: PLC0415

    from sparse_serve.op_library import library_path  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library_path()))
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"), options)

    def classify(texts: Sequence[str]) -> Probabilities:
        scores: Probabilities = session.run(["scores"], {"TEXT": np.array(texts, np.object_)[:, None]})[0]
        return scores

    return classify


def token_graph(folder: Path) -> Classify:
    """A lean loop over optimum's graph: tokenize, run, softmax, and nothing else."""
    import onnxruntime  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding()
    session = onnxruntime.InferenceSession(str(next(folder.glob("*.onnx"))))
    names = [each.name for each in session.get_inputs()]
    fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

    def classify(texts: Sequence[str]) -> Probabilities:
        encoded = tokenizer.encode_batch(texts)
        feeds = {name: np.array([getattr(each, fields[name]) for each in encoded]) for name in names}
        logits = session.run(None, feeds)[0]
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities: Probabilities = powers / powers.sum(axis=1, keepdims=True)
        return probabilities

    return classify


def pipeline(folder: Path) -> Classify:
    """The pipeline of Transformers, on torch."""
    import transformers  # noqa: PLC0415

    pipe = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    columns = pipe.model.config.label2id

    def classify(texts: Sequence[str]) -> Probabilities:
        found = pipe(list(texts), top_k=None, truncation=True, batch_size=len(texts))
        probabilities = np.empty((len(texts), len(columns)), np.float32)
        for row, classes in enumerate(found):
            for each in classes:
                probabilities[row, columns[each["label"]]] = each["score"]
        return probabilities

    return classify


KINDS: Mapping[str, Callable[[Path], Classify]] = {
    "text-graph": text_graph,
    "token-graph": token_graph,
    "pipeline": pipeline,
}


def timed(classify: Classify, requests: Sequence[Sequence[str]]) -> list[int]:
    """Return the ns of each call; one before them is not counted."""
    classify(requests[-1])
    took = []
    for texts in requests:
        start = time.perf_counter_ns()
        classify(texts)
        took.append(time.perf_counter_ns() - start)
    return took


def main(kind: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    classify = KINDS[kind](Path(folder))
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "texts" in asked:
            told: dict[str, Any] = {"probabilities": classify(asked["texts"]).tolist()}
        else:
            told = {"ns": timed(classify, asked["requests"])}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
