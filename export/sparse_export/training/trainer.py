"""Transformers' `Trainer`, whose batches are all equally large."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainingArguments

from sparse_export.encoders.axis import recorded
from sparse_export.training.batches import FullBatches, rows_within
from sparse_export.training.callbacks import Report, Steering
from sparse_export.training.distributed import on_cpu, rows_per_pass
from sparse_export.training.job import Job, Training
from sparse_export.training.learning import PatternLearning, make_learning, share_of, with_rho
from sparse_export.training.partial import PartialRun
from sparse_export.training.records import RunSettings


class RunTrainer(Trainer):  # type: ignore[misc]  # Transformers is untyped
    """The trainer, in whose batches all steps are means over equally many rows.

    Attributes:
        batches: the order of the rows.
        max_length: tokens at which they are cut.
        learning: how the model's pattern is trained; None without a pattern.
    """

    def __init__(
        self,
        batches: FullBatches,
        max_length: int,
        report: Report,
        learning: PatternLearning | None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.batches = batches
        self.max_length = max_length
        self.learning = learning
        self._report = report
        self.remove_callback(PrinterCallback)
        self.add_callback(report)
        if learning is not None:
            self.add_callback(learning)

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

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Make AdamW, with a group of its own for what is learned of a pattern."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if is_new and self.learning is not None and self.learning.weights:
            self.learning.separate(optimizer)
        return optimizer

    def task_loss(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> tuple[Tensor, Any]:
        """Return the task's loss, a mean over this process's part of a batch, and the model's outputs."""
        return super().compute_loss(  # type: ignore[no-any-return]
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of the task and, in training, of what the pattern's sparsity lacks."""
        if self.learning is None or not model.training:
            loss, outputs = self.task_loss(model, inputs, num_items_in_batch)
        else:
            with recorded(self.model) as masks:
                loss, outputs = self.task_loss(model, inputs, num_items_in_batch)
            loss = loss + self.learning.cost(masks)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **more: Any
    ) -> tuple[Tensor | None, Any, Any]:
        """Evaluate a batch; with a pattern, ρ stands beside the outputs (see `with_rho`)."""
        if self.learning is None:
            return super().prediction_step(model, inputs, *arguments, **more)  # type: ignore[no-any-return]
        inputs = self._prepare_inputs(inputs)
        with recorded(self.model) as masks:
            loss, outputs, targets = super().prediction_step(model, inputs, *arguments, **more)
        return loss, (outputs, share_of(masks, inputs["attention_mask"])), targets

    def train(self, *args: Any, **arguments: Any) -> Any:
        """Train, and show where it is."""
        # The same seed made the same weights everywhere; dropout must differ where rows do.
        torch.manual_seed(self.args.seed + self.args.process_index)
        with self._report.progress:
            return super().train(*args, **arguments)


def make_trainer(
    job: Job, settings: RunSettings, training: Training, run: PartialRun, console: Console
) -> RunTrainer:
    """Make what trains a run.

    Args:
        job: what is trained.
        settings: of the run.
        training: its model and rows.
        run: where its states are saved.
        console: where progress is shown.

    Raises:
        OptionError: the options do not fit the number of processes, or the pattern the length of the rows.
    """
    options = settings.options
    learning = make_learning(options, training, console)
    figures, reduced = training.figures, training.reduced
    # One size for all: with several, Accelerate would lose or repeat rows among processes.
    longest = max(len(row["input_ids"]) for row in training.evaluation)
    if learning is not None:
        figures, reduced = with_rho(figures, reduced)
    # Its forward takes any keyword, from which Trainer concludes that the loss is divided by the rows of all
    # parts and processes already. It is the mean of its own part: accumulated parts would add up.
    training.model.accepts_loss_kwargs = False
    return job.trainer(
        training.batches,
        training.max_length,
        Report(console, options),
        learning,
        model=training.model,
        args=_arguments(job, settings.processes, run.states, rows_within(job.rows_at_once, longest)),
        data_collator=training.collator,
        train_dataset=training.rows,
        eval_dataset=training.evaluation,
        processing_class=training.tokenizer,
        compute_metrics=figures,
        preprocess_logits_for_metrics=reduced,
        callbacks=[Steering(options, training.batches, run)],
    )


def _arguments(job: Job, processes: int, states: Path, eval_rows: int) -> TrainingArguments:
    options = job.options
    arguments = TrainingArguments(
        output_dir=str(states),
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=rows_per_pass(options, processes),
        per_device_eval_batch_size=eval_rows,
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
        report_to="none",
        log_level_replica="passive",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        # What is learned of a pattern has no part in the dense stage.
        ddp_find_unused_parameters=options.learns and options.dense_stage > 0,
        use_cpu=on_cpu(),
    )
    # Where a process sees several GPUs, Trainer would multiply the batch by their number and share it out.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
