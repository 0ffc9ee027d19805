"""Training: an encoder and rows in, a checkpoint with sparse attention out.

options      what can be set                      sources      rows, read and encoded
run          one run, from encoder to checkpoint  batches      which rows each step is computed on
job          what runs differ in                  task         the job of a task and its head
encoding     rows as an encoder takes them        testing      what a result answers to other rows
objectives   what a step minimises                precision    which numbers it computes in
freezing     what stays as it was pretrained      dropout      as a run asks for it
attentions   which attentions are named           sweep        one run for each of them
schedule     the stages of learning a pattern     learning     a model brought along them
sparsity     how sparse a model attends           calibration  thresholds set to a target
partial      what a run is resumed from           trainer      Transformers' Trainer, as all jobs use it
distributed  several processes as one             callbacks    progress, saving, stopping
records      what is written about a run          reporting    where figures are logged besides
groups       weights trained in their own way

The job of a language model is in `sparse_export.pretraining`.
"""

from sparse_export.encoders.stored_files import RECORD_NAME
from sparse_export.training.attentions import choose_attentions
from sparse_export.training.distributed import is_first_process, one_line, said_once
from sparse_export.training.options import FinetuneOptions, PatternOptions, TrainingOptions
from sparse_export.training.records import FinetuneRecord, LayerSparsity, TrainingRecord
from sparse_export.training.run import finetune
from sparse_export.training.sources import Source, sources_of
from sparse_export.training.sweep import require_fitting, runs_of, sweep, sweep_tables, write_sweep

__all__ = [
    "RECORD_NAME",
    "FinetuneOptions",
    "FinetuneRecord",
    "LayerSparsity",
    "PatternOptions",
    "Source",
    "TrainingOptions",
    "TrainingRecord",
    "choose_attentions",
    "finetune",
    "is_first_process",
    "one_line",
    "require_fitting",
    "runs_of",
    "said_once",
    "sources_of",
    "sweep",
    "sweep_tables",
    "write_sweep",
]
