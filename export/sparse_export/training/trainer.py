"""Transformers' `Trainer`, made to classify."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from sparse_export.checkpoint import cut_length, load_tokenizer, new_classifier
from sparse_export.training.batches import FullBatches
from sparse_export.training.callbacks import Report, Steering
from sparse_export.training.distributed import on_cpu, rows_per_pass
from sparse_export.training.freezing import freeze
from sparse_export.training.options import LOSS, FinetuneOptions
from sparse_export.training.partial import PartialRun
from sparse_export.training.records import RunSettings
from sparse_export.training.sources import encode
from sparse_serve.data import TextData
from sparse_serve.metrics import task_metrics
from sparse_serve.tasks import ProblemType, Task


class ClassifierTrainer(Trainer):  # type: ignore[misc]  # Transformers is untyped
    """The trainer, in whose batches all steps are means over equally many rows.

    Attributes:
        batches: the order of the rows.
        max_length: tokens at which they are cut.
    """

    def __init__(self, batches: FullBatches, max_length: int, report: Report, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.batches = batches
        self.max_length = max_length
        self._report = report
        self.remove_callback(PrinterCallback)
        self.add_callback(report)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return this process's share of the batches."""
        return self._loader(self.train_dataset, self.args.train_batch_size, self.batches)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return this process's share of the evaluation rows, in batches of like lengths, longest first."""
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        longest_first = sorted(range(len(rows)), key=lambda row: -len(rows[row]["input_ids"]))
        return self._loader(rows, self.args.eval_batch_size, longest_first)

    def _loader(self, rows: Any, batch_size: int, order: Iterable[int]) -> DataLoader[Any]:
        loader = DataLoader(
            rows,
            batch_size=batch_size,
            sampler=order,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)  # type: ignore[no-any-return]

    def train(self, *args: Any, **arguments: Any) -> Any:
        """Train, and show where it is."""
        # The same seed made the same weights everywhere; dropout must differ where rows do.
        torch.manual_seed(self.args.seed + self.args.process_index)
        with self._report.progress:
            return super().train(*args, **arguments)


def make_trainer(
    settings: RunSettings, train: TextData, evaluation: TextData, run: PartialRun, console: Console
) -> ClassifierTrainer:
    """Make what trains a run: its model, its encoded rows and how they are trained on.

    Args:
        settings: of the run.
        train: rows to train on.
        evaluation: rows that choose the best epoch.
        run: where its states are saved.
        console: where progress is shown.

    Raises:
        OptionError: the options do not fit the encoder or the number of processes.
        DataError: too few labels, or evaluation rows with others than the training rows.
        CheckpointError: the encoder cannot be loaded.
    """
    options = settings.options
    arguments = _arguments(options, settings.processes, run.states)
    task = Task.of(options.problem_type, train)
    model = new_classifier(
        settings.encoder, options.attention, task, options.seed, from_scratch=options.from_scratch
    )
    if options.freeze_layers is not None:
        freeze(model, options.freeze_layers)
    # Its forward takes any keyword, from which Trainer concludes that the loss is divided by the rows of all
    # parts and processes already. It is the mean of its own part: accumulated parts would add up.
    model.accepts_loss_kwargs = False
    tokenizer = load_tokenizer(settings.encoder)
    max_length = cut_length(model.config, tokenizer, options.max_length)
    train_set, eval_set = (encode(tokenizer, model.config, data, max_length) for data in (train, evaluation))
    batches = FullBatches([len(row["input_ids"]) for row in train_set], options.batch_size, options.seed)
    return ClassifierTrainer(
        batches,
        max_length,
        Report(console, options.selection_metric),
        model=model,
        args=arguments,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=train_set,
        eval_dataset=eval_set,
        processing_class=tokenizer,
        compute_metrics=_figures(options.problem_type),
        callbacks=[Steering(options, batches, run)],
    )


def _arguments(options: FinetuneOptions, processes: int, states: Path) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(states),
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=rows_per_pass(options, processes),
        per_device_eval_batch_size=64,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        weight_decay=options.weight_decay,
        warmup_steps=options.warmup_ratio,  # below 1, Transformers reads a share of all steps
        lr_scheduler_type="linear",
        optim="adamw_torch_fused",
        seed=options.seed,
        eval_strategy="epoch",
        logging_strategy="epoch",
        logging_nan_inf_filter=False,
        save_strategy="epoch",
        save_total_limit=2,
        metric_for_best_model=options.selection_metric,
        greater_is_better=options.greater_is_better,
        report_to="none",
        log_level_replica="passive",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        use_cpu=on_cpu(),
    )
    # Where a process sees several GPUs, Trainer would multiply the batch by their number and share it out.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _figures(problem_type: ProblemType) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return what judges the evaluation rows: the loss and, if that is a number, the task's metrics."""

    def figures(prediction: EvalPrediction) -> dict[str, float]:
        logits, targets = prediction.predictions, prediction.label_ids
        # Trainer's own loss weighs a short last batch like a full one.
        loss = _loss(problem_type, torch.from_numpy(logits).double(), torch.from_numpy(targets))
        metrics = task_metrics(problem_type, logits, targets) if loss.isfinite() else {}
        return {LOSS: loss.item(), **metrics}

    return figures


def _loss(problem_type: ProblemType, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, targets)
    if problem_type == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, targets.double())
    return F.mse_loss(logits[:, 0], targets.double())
