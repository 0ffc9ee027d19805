"""Pre-training as a job of `sparse_export.training`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from rich.console import Console
from transformers import (
    DataCollatorForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from sparse_export.encoders.tokenizer import cut_length, load_padding_tokenizer
from sparse_export.pretraining.corpus import TokenRows, tokenize
from sparse_export.pretraining.judging import answer, figures, reduced
from sparse_export.pretraining.masking import MaskedRows, Masking
from sparse_export.pretraining.models import load_language_model, new_language_model
from sparse_export.pretraining.objectives import MaskedTokens, NextSentences
from sparse_export.pretraining.options import PretrainOptions
from sparse_export.pretraining.sentences import encode_pairs
from sparse_export.pretraining.text import reading_of
from sparse_export.tasks.trained import IGNORED, Encoded
from sparse_export.training.batches import BatchPlan, PlannedBatches
from sparse_export.training.calibration import rows_aside, set_aside
from sparse_export.training.dropout import set_dropout
from sparse_export.training.freezing import freeze
from sparse_export.training.job import Job, Training
from sparse_export.training.records import TrainingRecord
from sparse_export.training.run import train_checkpoint
from sparse_export.training.sources import Rows, Source, read_rows
from sparse_serve.data import TextData
from sparse_serve.errors import DataError, OptionError


@dataclass(frozen=True)
class PretrainRecord(TrainingRecord):
    """What made a pre-trained encoder."""

    options: PretrainOptions


@dataclass(frozen=True)
class PretrainJob(Job):
    """An encoder that tells masked tokens."""

    record: ClassVar[type[TrainingRecord]] = PretrainRecord
    rows_at_once: ClassVar[int] = 8  # each token has a logit for every word of the vocabulary

    options: PretrainOptions

    def read(self, train: Source, evaluation: Source | None, console: Console) -> tuple[Rows, Rows, bool]:
        """Read texts, or documents."""
        return read_rows(train, evaluation, self.options, reading_of(self.options), console)

    def prepare(self, encoder: str, train: TextData, evaluation: TextData) -> Training:
        """Put the heads on the encoder, encode the texts and mask those that evaluate."""
        options = self.options
        model = new_language_model(encoder, options)
        set_dropout(model, options.dropout)
        if options.freeze_layers is not None:
            freeze(model, options.freeze_layers)
        tokenizer = load_padding_tokenizer(encoder, model.config, options.revision)
        max_length = cut_length(model.config, tokenizer, options.max_length)
        self._require_room(tokenizer, max_length)
        masking = Masking(tokenizer, options.seed)
        rows, eval_rows = (
            self._encoded(tokenizer, model.config, data, max_length) for data in (train, evaluation)
        )
        masked = [masking.evaluation(row, number) for number, row in enumerate(eval_rows)]
        _require_masked(evaluation, masked)
        rows, calibration = set_rows_aside(rows, masked, options.seed) if options.learns else (rows, [])
        lengths = rows.lengths if isinstance(rows, TokenRows) else [len(row["input_ids"]) for row in rows]
        batches = PlannedBatches(BatchPlan(lengths, options.batch_size, options.seed))
        return Training(
            model,
            tokenizer,
            max_length,
            rows=MaskedRows(rows, batches, masking),
            batches=batches,
            calibration=calibration,
            evaluation=masked,
            collator=DataCollatorForTokenClassification(tokenizer, label_pad_token_id=IGNORED),
            objectives=[MaskedTokens(), *([NextSentences()] if options.nsp else [])],
            answer=answer,
            figures=figures,
            reduced=reduced,
        )

    def load(self, folder: Path) -> PreTrainedModel:
        """Load an encoder with the heads that it was trained with."""
        return load_language_model(folder, nsp=self.options.nsp)

    def labels(self, model: PreTrainedModel) -> Sequence[str]:
        """Return none."""
        return ()

    def _require_room(self, tokenizer: PreTrainedTokenizerFast, max_length: int) -> None:
        nsp = self.options.nsp
        least = tokenizer.num_special_tokens_to_add(pair=nsp) + (2 if nsp else 1)
        if max_length < least:
            raise OptionError(
                f"--max-length {max_length} is out of range: beside its special tokens a row has no room for "
                f"a token {'of each segment' if nsp else 'to be told'}; give {least} or more"
            )

    def _encoded(
        self, tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig, data: TextData, max_length: int
    ) -> Sequence[Encoded]:
        if self.options.nsp:
            return encode_pairs(tokenizer, data, max_length, self.options.seed)
        return tokenize(tokenizer, config, data, max_length)


def pretrain(
    encoder: str | Path,
    train: Source,
    output: Path,
    options: PretrainOptions,
    *,
    evaluation: Source | None = None,
    force: bool = False,
    resume: bool = False,
    console: Console | None = None,
) -> PretrainRecord:
    """Train `encoder` further, or anew, on texts without labels: `train_checkpoint` with its language model.

    What is written to `output` is an encoder for `finetune`, which also loads as Transformers' own model for
    masked tokens. Arguments, result and errors are those of `train_checkpoint`; sources may also be plain
    text (.txt), a text on each line. For next-sentence prediction lines are sentences, and blank ones stand
    between documents.
    """
    record = train_checkpoint(
        PretrainJob(options),
        encoder,
        train,
        output,
        evaluation=evaluation,
        force=force,
        resume=resume,
        console=console,
    )
    return cast(PretrainRecord, record)


def set_rows_aside(
    rows: Sequence[Encoded], judged: Sequence[Encoded], seed: int
) -> tuple[Sequence[Encoded], list[Encoded]]:
    """Split off training rows as `calibration.set_aside` does; those that are on disk stay there."""
    if not isinstance(rows, TokenRows):
        return set_aside(rows, judged, seed)
    numbers = rows_aside(rows.lengths, [len(row["input_ids"]) for row in judged], seed)
    return rows.without(numbers), [rows[number] for number in numbers]


def _require_masked(data: TextData, rows: Sequence[Encoded]) -> None:
    if all(target == IGNORED for row in rows for target in row["labels"]):
        raise DataError(
            f"the {len(rows)} evaluation rows of {data.source} have so few tokens that none is masked; give "
            "more text, or longer rows"
        )
