"""Transformers' `Trainer`, with planned batches and a list of objectives."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainingArguments

from sparse_export.attention.masks import LayerMask
from sparse_export.encoders.extension import parameter_groups
from sparse_export.encoders.patterned import recorded
from sparse_export.training.batches import PlannedBatches, longest_first, rows_within
from sparse_export.training.callbacks import Report, Steering
from sparse_export.training.distributed import TOGETHER_WITHIN, on_cpu, rows_per_pass
from sparse_export.training.groups import set_apart
from sparse_export.training.job import Job, Training
from sparse_export.training.learning import (
    PatternLearning,
    SparsityCost,
    make_learning,
    share_of,
    with_rho,
)
from sparse_export.training.objectives import Objective, Part
from sparse_export.training.partial import PartialRun
from sparse_export.training.precision import require_precision
from sparse_export.training.records import RunSettings
from sparse_export.training.reporting import reporting
from sparse_export.training.schedule import Stages


class RunTrainer(Trainer):  # type: ignore[misc]  # Transformers is untyped
    """The trainer, whose steps are planned, and minimise the sum of objectives.

    Attributes:
        batches: which rows each step is computed on.
        objectives: what is minimised.
        learning: how the model's pattern is trained; None without a pattern.
    """

    def __init__(
        self,
        batches: PlannedBatches,
        objectives: Sequence[Objective],
        answer: Callable[[Any, Tensor], Any],
        learning_rates: Mapping[str, float],
        report: Report,
        learning: PatternLearning | None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.batches = batches
        self.objectives = objectives
        self._answer = answer
        self._learning_rates = learning_rates
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
        return self._loader(rows, self.args.eval_batch_size, longest_first(rows))

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
        """Make AdamW, with groups of their own for what extensions have added, without weight decay."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if is_new:
            set_apart(optimizer, parameter_groups(self.model), self._learning_rates)
        return optimizer

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | None]:
        """Return the parts of a step that this process computes, and how many items all processes' have.

        The counts `(objectives,)` are 0 where an objective is a mean over rows; None where all are.
        """
        parts, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = [[objective.items(part) for objective in self.objectives] for part in parts]
        if all(count is None for each in counts for count in each):
            return parts, None
        zero = torch.zeros((), dtype=torch.int64)
        summed = [torch.stack([zero if count is None else count.cpu() for count in each]) for each in counts]
        return parts, self.accelerator.reduce(torch.stack(summed).sum(0).to(device), "sum")

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        """Return the sum of the objectives, in training; in evaluation `figures` judge the outputs."""
        targets = {name for objective in self.objectives for name in objective.targets}
        # In evaluation the caller may be recording.
        records = self.learning is not None and model.training
        recording: AbstractContextManager[list[LayerMask]] = (
            recorded(self.model) if records else nullcontext([])
        )
        more: dict[str, Any] = {}
        if model.training and any(each.encodes_twice and each.joins(inputs) for each in self.objectives):
            inputs = {name: torch.cat([each, each]) for name, each in inputs.items()}
            more["output_hidden_states"] = True
        with recording as masks:
            outputs = model(**{name: each for name, each in inputs.items() if name not in targets}, **more)
        if not model.training:
            none = torch.zeros((), device=self.args.device)
            answer = {"logits": self._answer(outputs, inputs["attention_mask"])}
            return (none, answer) if return_outputs else none
        parts = self.current_gradient_accumulation_steps * self.args.world_size
        counts = [None] * len(self.objectives) if num_items_in_batch is None else num_items_in_batch
        loss = sum(
            objective.loss(Part(inputs, outputs, masks, items, parts))
            for objective, items in zip(self.objectives, counts, strict=True)
        )
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
    job: Job[Any],
    settings: RunSettings,
    training: Training,
    stages: Stages,
    run: PartialRun,
    console: Console,
) -> RunTrainer:
    """Make what trains a run.

    Args:
        job: what is trained.
        settings: of the run.
        training: its model and rows.
        stages: its steps.
        run: where its states are saved.
        console: where progress is shown.

    Raises:
        OptionError: the options do not fit the number of processes, or the pattern the length of the rows.
    """
    options = settings.options
    learning = make_learning(options, training, stages, console)
    objectives = (*training.objectives, *([] if learning is None else [SparsityCost(learning)]))
    figures, reduced = training.figures, training.reduced
    # One size for all: with several, Accelerate would lose or repeat rows among processes.
    longest = max(len(row["input_ids"]) for row in training.evaluation)
    if learning is not None:
        figures, reduced = with_rho(figures, reduced)
    # Its forward takes any keyword, from which Trainer concludes that the loss is divided by the rows of all
    # parts and processes already. It is the mean of its own part: accumulated parts would add up.
    training.model.accepts_loss_kwargs = False
    if options.gradient_checkpointing:
        training.model.gradient_checkpointing_enable({"use_reentrant": False})
    with reporting(options.report_to, run.output):
        return RunTrainer(
            training.batches,
            objectives,
            training.answer,
            training.learning_rates,
            Report(console, options, stages, training.batches.plan, training.table),
            learning,
            model=training.model,
            args=_arguments(job, training, objectives, stages, settings.processes, run, longest),
            data_collator=training.collator,
            train_dataset=training.rows,
            eval_dataset=training.evaluation,
            processing_class=training.tokenizer,
            compute_metrics=figures,
            preprocess_logits_for_metrics=reduced,
            callbacks=[Steering(options, training.batches, stages, run)],
        )


def _arguments(
    job: Job[Any],
    training: Training,
    objectives: Sequence[Objective],
    stages: Stages,
    processes: int,
    run: PartialRun,
    longest: int,
) -> TrainingArguments:
    options = job.options
    require_precision(options)
    arguments = TrainingArguments(
        output_dir=str(run.states),
        num_train_epochs=options.epochs,
        max_steps=options.max_steps or -1,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=rows_per_pass(options, processes),
        per_device_eval_batch_size=rows_within(job.rows_at_once, longest),
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        weight_decay=options.weight_decay,
        warmup_steps=options.warmup_ratio,  # below 1, Transformers reads a share of all steps
        lr_scheduler_type=options.lr_scheduler_type,
        max_grad_norm=options.max_grad_norm,
        bf16=options.bf16,
        tf32=options.tf32 or None,
        optim="adamw_torch_fused",
        seed=options.seed,
        eval_strategy="epoch",
        logging_strategy="epoch",
        logging_nan_inf_filter=False,
        save_strategy="epoch",
        save_total_limit=2,
        report_to=options.report_to or "none",
        label_names=[name for objective in objectives for name in objective.targets],
        log_level_replica="passive",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        # What is learned of a pattern has no part in the dense stage.
        ddp_find_unused_parameters=training.leaves_unused or (options.learns and stages.dense > 0),
        ddp_timeout=round(TOGETHER_WITHIN.total_seconds()),
        use_cpu=on_cpu(),
    )
    # Where a process sees several GPUs, Trainer would multiply the batch by their number and share it out.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
