"""Fine-tuning: an encoder and labelled rows in, a sparse-attention classifier out.

options      what can be set                      sources    rows, read and encoded
run          one run, from encoder to checkpoint  batches    the order of the rows
sweep        one run for each of several λ        trainer    Transformers' Trainer, made to classify
partial      what a run is resumed from           callbacks  progress, saving, stopping
distributed  several processes as one             records    what is written about a run
"""

from sparse_export.training.distributed import is_first_process, said_once
from sparse_export.training.options import FinetuneOptions
from sparse_export.training.records import RECORD_NAME, FinetuneRecord, LayerSparsity
from sparse_export.training.run import finetune
from sparse_export.training.sources import Source, sources_of
from sparse_export.training.sweep import sweep, sweep_options, sweep_tables

__all__ = [
    "RECORD_NAME",
    "FinetuneOptions",
    "FinetuneRecord",
    "LayerSparsity",
    "Source",
    "finetune",
    "is_first_process",
    "said_once",
    "sources_of",
    "sweep",
    "sweep_options",
    "sweep_tables",
]
