"""Export a checkpoint as optimum-onnx's users do; runs in optimum's environment.

    python export_onnx.py CHECKPOINT FOLDER

Writes `FOLDER/onnx`, the plain graph, `FOLDER/o3`, the fused one, and `FOLDER/int8`, the dynamically
quantized one. Its quantizer does not take the fused graph.
"""

import sys
from pathlib import Path

from optimum.onnxruntime import ORTModelForSequenceClassification, ORTOptimizer, ORTQuantizer
from optimum.onnxruntime.configuration import AutoOptimizationConfig, AutoQuantizationConfig
from transformers import AutoTokenizer


def export(checkpoint: str, folder: Path) -> None:
    model = ORTModelForSequenceClassification.from_pretrained(checkpoint, export=True)
    plain = folder / "onnx"
    model.save_pretrained(plain)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(plain)
    fused = AutoOptimizationConfig.O3()
    ORTOptimizer.from_pretrained(model).optimize(save_dir=folder / "o3", optimization_config=fused)
    small = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=False)
    ORTQuantizer.from_pretrained(plain).quantize(save_dir=folder / "int8", quantization_config=small)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
