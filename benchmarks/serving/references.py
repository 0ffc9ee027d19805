"""What a checkpoint answers in torch and in the library: what served answers are held against."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparse_serve import Classifier

TOLERANCE = 2e-4
"""Of logits; `export` allows half of it between torch and the graph."""

Logits = npt.NDArray[np.float32]


def reference_answers(checkpoint: Path, entry: Path, texts: Sequence[str]) -> list[Logits]:
    """Return the logits `(C,)` of each text in torch, alone in its batch.

    Raises:
        SystemExit: the library answers otherwise.
    """
    import torch  # noqa: PLC0415  not needed by who only reads

    from sparse_export import load_checkpoint, load_tokenizer  # noqa: PLC0415

    model, tokenizer = load_checkpoint(str(checkpoint)).eval(), load_tokenizer(str(checkpoint))
    classifier = Classifier(entry)
    length = classifier.entry.manifest.max_length
    answers = []
    with torch.no_grad():
        for text in texts:
            tokens = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")
            answers.append(model(**tokens).logits[0].numpy())
    apart = max(
        np.abs(ours.logits - right).max() for ours, right in zip(classifier(texts), answers, strict=True)
    )
    if apart > TOLERANCE:
        raise SystemExit(f"the library's logits are {apart:.1e} from torch's: export the entry again")
    return answers


def is_right(logits: Logits, right: Logits) -> bool:
    """Tell whether served logits are the reference's."""
    return logits.shape == right.shape and bool(np.allclose(logits, right, rtol=0, atol=TOLERANCE))
