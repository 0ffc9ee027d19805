"""Write down what checkpoints and graphs were at commit b74bd09, before the model side was rebuilt.

    python make_before.py CHECKOUT      a checkout of b74bd09 with its op library in serve/sparse_serve/lib

Each variant gets one JSON beside this file: the config as `save_pretrained` wrote it, names and shapes of
its weights, the logits of the batch in `inputs.json` for each of its masks, and the nodes of its graphs in
order. Those of packed graphs that are read were written anew: their last layer computes first tokens alone,
and norms of sums and GELU of biased values are one node each. But for that they are the same. The weights
themselves are drawn by name (`seeded_weights`). `stock` are the logits of Transformers alone: by them a
machine tells whether its arithmetic is the same to the bit.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CHECKOUT = Path(sys.argv[1])
# An editable install finds the packages where they are now, not as they were.
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path[:0] = [str(CHECKOUT / "export"), str(CHECKOUT / "serve"), str(CHECKOUT / "tests"), str(HERE.parent)]

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from seeded_weights import (  # noqa: E402
    described_nodes,
    hex_of,
    logits_of,
    seeded_weights,
    stock_model,
    write_weights,
)
from sparse_export.families import input_names  # noqa: E402
from sparse_export.patterns import Pattern  # noqa: E402

from sparse_export.checkpoint import AttentionSpec, load_classifier  # noqa: E402
from sparse_export.graph import GraphTarget, export_graph  # noqa: E402
from tiny_models import FAMILIES, LAMBD, make_model, masks, token_ids  # noqa: E402

OFFSETS = ((0, 3, 7), (1, 5))
BERT = {
    "axis-lambda": AttentionSpec.parse("axis+local1+global1+random1", LAMBD, seed=3),
    "axis-alone": AttentionSpec("axis", None, Pattern(axis=True)),
    "diagonal": AttentionSpec.parse("diagonal", None),
    "layer-diagonal": AttentionSpec.parse("layer-diagonal+local1", None),
    "local2": AttentionSpec.parse("local2", None),
    "local2-lambda": AttentionSpec.parse("local2", LAMBD),
    "local2+global2": AttentionSpec.parse("local2+global2", None),
    "local2+global1+random1": AttentionSpec.parse("local2+global1+random1", None, seed=5),
    "offsets": AttentionSpec("axis", None, Pattern(offsets=OFFSETS)),
    "offsets-shared": AttentionSpec("axis", None, Pattern(offsets=OFFSETS[:1], local=1)),
}
ALL_KINDS = ("packed", "packed_dense", "padded_fused", "padded_eager", "padded_sparse")
KINDS = {
    "bert-sparsegen": ALL_KINDS,
    "bert-axis": ("packed", "packed_dense"),
    "bert-softmax": ("packed", "padded_fused", "padded_eager"),
    "roberta-sparsegen": ("packed", "padded_fused"),
    "distilbert-sparsegen": ("packed", "padded_fused"),
    "mobilebert-sparsegen": ("packed", "padded_fused"),
}


def variants() -> dict[str, tuple[str, AttentionSpec, dict[str, Any]]]:
    """Family, attention and changes of the config, by name."""
    named: dict[str, tuple[str, AttentionSpec, dict[str, Any]]] = {}
    for family in FAMILIES:
        named[f"{family}-softmax"] = family, AttentionSpec(), {}
        named[f"{family}-sparsegen"] = family, AttentionSpec("sparsegen", LAMBD), {}
        named[f"{family}-axis"] = family, AttentionSpec.parse("axis", None), {}
    named |= {f"bert-{name}": ("bert", spec, {}) for name, spec in BERT.items()}
    multi_label = {"problem_type": "multi_label_classification"}
    named["bert-multi-label"] = "bert", AttentionSpec("sparsegen", LAMBD), multi_label
    regression = {"problem_type": None, "id2label": {0: "score"}, "label2id": {"score": 0}}
    named["bert-regression"] = "bert", AttentionSpec(), regression
    named["bert-sinusoidal"] = "bert", AttentionSpec(), {"sinusoidal_positions": True}
    return named


def before(family: str, attention: AttentionSpec, changes: dict[str, Any], kinds: tuple[str, ...]) -> Any:
    """Return what one variant was."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(attention, family)
        for key, value in changes.items():
            setattr(model.config, key, value)
        if "id2label" in changes:
            model = type(model)(model.config)
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        shapes = {key: list(weight.shape) for key, weight in load_file(folder / "model.safetensors").items()}
        weights = seeded_weights(shapes)
        write_weights(folder, weights)
        loaded, alone = load_classifier(folder), stock_model(folder)
        ids, segments = token_ids()
        tensors = {"input_ids": ids, "token_type_ids": segments}
        names = input_names(loaded.config)
        logits, stock = {}, {}
        for mask_name, mask in masks().items():
            batch = {key: (tensors | {"attention_mask": mask})[key] for key in names}
            logits[mask_name] = hex_of(logits_of(loaded, batch))
            stock[mask_name] = hex_of(logits_of(alone, batch))
        nodes = {kind: described_nodes(export_graph(loaded, kind, GraphTarget())) for kind in kinds}
    return {"config": config, "shapes": shapes, "logits": logits, "stock": stock, "nodes": nodes}


def main() -> None:
    """Write every file."""
    torch.set_num_threads(1)
    ids, segments = token_ids()
    tensors = {"input_ids": ids, "token_type_ids": segments, **masks()}
    (HERE / "inputs.json").write_text(
        json.dumps({key: value.tolist() for key, value in tensors.items()}) + "\n"
    )
    for name, (family, attention, changes) in variants().items():
        print(name, file=sys.stderr)
        kinds = KINDS.get(name, () if changes or name.endswith("-softmax") else ("packed",))
        (HERE / f"{name}.json").write_text(json.dumps(before(family, attention, changes, kinds)) + "\n")


if __name__ == "__main__":
    main()
