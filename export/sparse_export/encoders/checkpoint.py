"""Checkpoints: Transformers folders (safetensors) that remember their attention in `config.json`.

The key is `sparse_attention`, for example `{"kind": "sparsegen", "lambd": -4.0}`; a checkpoint without it
attends with softmax. SSAF and fixed patterns add no weights, so any softmax checkpoint can be loaded as one
of theirs; learned patterns (see `axis`) do, and their weights are part of the checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)

import sparse_export.attention.implementations  # noqa: F401  registers "sparsegen" and "axis"
from sparse_export.attention.patterns import Pattern
from sparse_export.attention.sparsegen import check_lambd
from sparse_export.encoders.axis import AdaptiveDiagonals, AxisLayer, attach, learned_modules
from sparse_export.encoders.families import family_of, max_tokens, silence_padding
from sparse_serve.errors import CheckpointError, OptionError
from sparse_serve.tasks import ProblemType, Task

_CONFIG_KEY = "sparse_attention"
# Where none of these is whole, Transformers makes up a tokenizer that knows no word.
_TOKENIZER_FILES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))

Heads = Mapping[type[PreTrainedConfig], type[PreTrainedModel]]
"""One head: each family's model that has it."""

AttentionKind = Literal["softmax", "sparsegen", "axis"]


@dataclass(frozen=True)
class AttentionSpec:
    """What a model attends to, and with which weights.

    Attributes:
        kind: "softmax" or "sparsegen" (SSAF) over all keys, "axis" over those of a pattern.
        lambd: λ of sparsegen-lin, finite and below 1; None for softmax, which a pattern may have too.
        pattern: of kind "axis".
    """

    kind: AttentionKind = "softmax"
    lambd: float | None = None
    pattern: Pattern | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(AttentionKind):
            raise OptionError(f"attention must be {' or '.join(get_args(AttentionKind))}, got {self.kind!r}")
        if (self.kind == "axis") != (self.pattern is not None):
            raise OptionError(f"attention of kind axis has a pattern, no other has; got {self}")
        if self.kind == "softmax" and self.lambd is not None:
            raise OptionError(
                f"softmax attention takes no lambda, got {self.lambd}: leave it out, or use sparsegen"
            )
        if self.kind == "sparsegen" and self.lambd is None:
            raise OptionError("sparsegen attention needs a lambda below 1, for example -4")
        if self.lambd is None:
            return
        try:
            # ONNX attributes are float32: 0.999999999 would be 1 there.
            check_lambd(torch.tensor(self.lambd, dtype=torch.float32).item())
        except ValueError as error:
            raise OptionError(str(error)) from None

    @classmethod
    def parse(cls, text: str, lambd: float | None, seed: int = 0) -> Self:
        """Read an attention by its name: softmax, sparsegen, or a pattern's (see `Pattern.parse`).

        Args:
            text: the name.
            lambd: λ; with a pattern it makes sparsegen-lin the normaliser over the allowed keys.
            seed: of a pattern's random keys.

        Raises:
            OptionError: an unknown name, a contradiction, or a λ that is missing, out of range or not taken.
        """
        text = text.strip().lower()
        if text in ("softmax", "sparsegen"):
            return cls(text, lambd)  # type: ignore[arg-type]  # mypy does not narrow by membership
        if normaliser := {"softmax", "sparsegen"}.intersection(text.split("+")):
            raise OptionError(
                f"attention {text!r}: {min(normaliser)} is not joined to a pattern; name the pattern alone, "
                "and for sparsegen's weights give λ by --lambda: --attention local2 --lambda -4"
            )
        return cls("axis", lambd, Pattern.parse(text, seed))

    @classmethod
    def override(
        cls, text: str | None, lambd: float | None, checkpoint: str | Path
    ) -> "AttentionSpec | None":
        """Return the attention that a command line asks for, or None where it asks for none.

        What it leaves out is the checkpoint's own: the attention to a λ, and the seed of random keys.

        Raises:
            OptionError: as `parse`, or a λ for a checkpoint whose attention takes none.
            CheckpointError: the checkpoint was asked, and cannot be read.
        """
        asked = None if text is None else cls.parse(text, lambd)
        if asked is None and lambd is None:
            return None
        if asked is not None and (asked.pattern is None or not asked.pattern.random):
            return asked
        own = cls.from_config(load_config(checkpoint))
        if asked is None:
            if own.kind == "softmax":
                raise OptionError(f"--lambda {lambd:g} needs --attention sparsegen, or a pattern")
            return replace(own, lambd=lambd)
        if own.pattern is None or not own.pattern.random:
            return asked
        return replace(asked, pattern=replace(cast(Pattern, asked.pattern), seed=own.pattern.seed))

    @property
    def name(self) -> str:
        """What `parse` reads it by, λ aside."""
        return self.kind if self.pattern is None else self.pattern.name

    @property
    def implementation(self) -> str:
        """The name under which Transformers knows this attention."""
        return "sdpa" if self.kind == "softmax" else self.kind

    def store(self, config: PreTrainedConfig) -> None:
        """Record this attention in a config, to be saved with it."""
        stored = {name: value for name, value in asdict(self).items() if name != "pattern" or value}
        setattr(config, _CONFIG_KEY, None if self.kind == "softmax" else stored)

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> Self:
        """Read the attention a checkpoint was trained with.

        Raises:
            CheckpointError: the entry is malformed.
        """
        stored: Any = getattr(config, _CONFIG_KEY, None)
        if stored is None:
            return cls()
        try:
            pattern = stored.get("pattern")
            return cls(**stored | {"pattern": None if pattern is None else Pattern(**pattern)})
        except (AttributeError, TypeError, OptionError) as error:
            raise CheckpointError(f"config.json: {_CONFIG_KEY} is {stored!r}: {error}") from None


def load_classifier(checkpoint: str | Path, attention: AttentionSpec | None = None) -> PreTrainedModel:
    """Load a trained classifier with the attention it was trained with, or with another one.

    Args:
        checkpoint: a Transformers folder, or the id of a model on the hub.
        attention: overrides the checkpoint's own attention; it is recorded in the returned model's config.

    Returns:
        The model in float32, in evaluation mode; where padding would show in the embedding beside it, that of
        padding is zero (`families.silence_padding`).

    Raises:
        CheckpointError: unreadable, of an unsupported family, without a classification head, or with
            weights that are NaN or infinite.
    """
    config = load_config(checkpoint)
    model, missing = load_model(checkpoint, config, attention or AttentionSpec.from_config(config))
    if missing:
        raise CheckpointError(
            f"{checkpoint} has no classification head ({', '.join(missing)} missing): fine-tune it first "
            "with `sparse-serve finetune`"
        )
    require_finite(checkpoint, model)
    return model.eval()


def new_classifier(
    encoder: str | Path, attention: AttentionSpec, task: Task, seed: int = 0, *, from_scratch: bool = False
) -> PreTrainedModel:
    """Load a pretrained encoder and put a fresh classification head for `task` on it.

    A head that the checkpoint has for as many labels is trained further.

    Args:
        encoder: a Transformers folder, or the id of a model on the hub.
        attention: what the model attends with, in training and ever after.
        task: the problem type and the labels, in the order of the logits.
        seed: seeds the initial weights that are not the encoder's.
        from_scratch: take the encoder's architecture alone, all weights random ("Np" in the SSAF paper).

    Returns:
        The model in float32, in training mode.

    Raises:
        CheckpointError: unreadable or of an unsupported family.
    """
    config = load_config(encoder)
    config.id2label = dict(enumerate(task.labels))
    config.label2id = {label: index for index, label in enumerate(task.labels)}
    config.problem_type = task.problem_type
    set_seed(seed)
    if from_scratch:
        model = random_model(config, attention)
    else:
        model, _ = load_model(encoder, config, attention, other_head=True)
    return model.train()


def task_of(config: PreTrainedConfig) -> Task:
    """Return what a checkpoint answers; without a problem type, one label means regression.

    That is how the loss of Transformers reads a config; several labels are then classes.

    Raises:
        CheckpointError: the problem type is unknown, or its labels cannot be served.
    """
    problem_type = config.problem_type
    if problem_type is None:
        problem_type = "regression" if config.num_labels == 1 else "single_label_classification"
    if problem_type not in get_args(ProblemType):
        raise CheckpointError(
            f"config.json: problem_type is {problem_type!r}; known are {', '.join(get_args(ProblemType))}"
        )
    try:
        return Task(problem_type, tuple(str(config.id2label[index]) for index in range(config.num_labels)))
    except KeyError as error:
        raise CheckpointError(f"config.json: id2label has no label {error}") from None
    except ValueError as error:
        raise CheckpointError(f"config.json: {error}") from None


def load_tokenizer(checkpoint: str | Path) -> PreTrainedTokenizerFast:
    """Load a checkpoint's tokenizer; it must be one the Rust library can run.

    Raises:
        CheckpointError: there is none, or it has no fast version.
    """
    folder = Path(checkpoint)
    if folder.is_dir() and not any(
        all((folder / name).is_file() for name in names) for names in _TOKENIZER_FILES
    ):
        expected = ", ".join(" with ".join(names) for names in _TOKENIZER_FILES)
        raise CheckpointError(
            f"{checkpoint} has no tokenizer: expected one of {expected}; copy it from the encoder it was "
            "trained from"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{checkpoint}: the tokenizer cannot be loaded: {_first_line(error)}"
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CheckpointError(
            f"{checkpoint}: {type(tokenizer).__name__} has no tokenizer.json; a fast tokenizer is needed"
        )
    # Served texts are cut and padded on the right, whatever the tokenizer was stored with.
    tokenizer.truncation_side = tokenizer.padding_side = "right"
    return tokenizer


def cut_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, wanted: int | None) -> int:
    """Return the tokens at which texts are cut: `wanted`, or what the encoder has positions for.

    Raises:
        OptionError: more than those, or so few that the tokenizer would not cut a pair at all.
    """
    positions = max_tokens(config)
    special = tokenizer.num_special_tokens_to_add(pair=True)
    if wanted is not None and not special <= wanted <= positions:
        raise OptionError(
            f"--max-length {wanted} is out of range: a pair has {special} special tokens and the encoder has "
            f"positions for {positions}; give {special} to {positions} tokens"
        )
    return wanted or positions


def save_classifier(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (safetensors), config with its attention, and tokenizer into `folder`."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # safetensors writes for the owner alone; weights are as readable as the rest of the checkpoint.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def load_config(checkpoint: str | Path) -> PreTrainedConfig:
    """Load the config of a checkpoint of a supported family.

    Raises:
        CheckpointError: unreadable or of an unsupported family.
    """
    if not str(checkpoint).strip():
        raise CheckpointError("the name of the checkpoint or encoder is empty: give a folder or a hub id")
    if _looks_like_path(checkpoint) and not (Path(checkpoint) / "config.json").is_file():
        raise CheckpointError(f"{checkpoint} is not a checkpoint folder: it has no config.json")
    try:
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        reason = _first_line(error.__cause__ if isinstance(error, StrictDataclassError) else error)
        raise CheckpointError(f"{checkpoint}: config.json cannot be read: {reason}") from error
    try:
        family_of(config)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint} {error}") from None
    return config


def random_model(
    config: PreTrainedConfig, spec: AttentionSpec, heads: Heads = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
) -> PreTrainedModel:
    """Return a model of this config with random weights, in float32."""
    spec.store(config)
    # The public from_config knows only its own classes.
    model: PreTrainedModel = _model_class(config, heads)._from_config(
        config, attn_implementation=spec.implementation, dtype=torch.float32
    )
    return model


def _model_class(config: PreTrainedConfig, heads: Heads) -> type[PreTrainedModel]:
    """Return the family's model with this head; where the config has a pattern, with that in its layers."""
    plain = heads[type(config)]
    pattern = AttentionSpec.from_config(config).pattern
    if pattern is None:
        return plain

    def build(self: PreTrainedModel, config: PreTrainedConfig) -> None:
        plain.__init__(self, config)
        attach(self, pattern)

    # By the same name, which the config of a checkpoint gives as its architecture.
    return type(plain.__name__, (plain,), {"__init__": build, "__module__": plain.__module__})


def load_model(
    checkpoint: str | Path,
    config: PreTrainedConfig,
    spec: AttentionSpec,
    heads: Heads = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    *,
    other_head: bool = False,
) -> tuple[PreTrainedModel, list[str]]:
    """Load a checkpoint's weights into a model with a head.

    Args:
        checkpoint: a Transformers folder, or the id of a model on the hub.
        config: the checkpoint's, or a changed one.
        spec: what the model attends with.
        heads: which head.
        other_head: the checkpoint may have another one, of other sizes, and lack what a pattern learns.

    Returns:
        The model in float32, and the names of the head's weights that the checkpoint lacks: they are random.

    Raises:
        CheckpointError: the weights cannot be loaded, or some of the encoder's are missing.
    """
    is_own = spec == AttentionSpec.from_config(config)
    spec.store(config)
    try:
        model, report = _model_class(config, heads).from_pretrained(
            checkpoint,
            config=config,
            attn_implementation=spec.implementation,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the report says more of them than the error
            output_loading_info=True,
        )
    except OptionError as error:
        if not is_own:
            raise
        raise CheckpointError(f"{checkpoint}: config.json: {error}") from None
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint}: the weights cannot be loaded: {_first_line(error)}") from error
    missing = sorted(report["missing_keys"] | {name for name, *_ in report["mismatched_keys"]})
    missing = _check_learned_pattern(checkpoint, model, report, missing, may_lack=other_head)
    if report["mismatched_keys"] and not other_head:
        name, stored, expected = min(report["mismatched_keys"])
        raise CheckpointError(
            f"{checkpoint}: {name} has shape {tuple(stored)}, config.json makes it {tuple(expected)}: "
            "they are not of one checkpoint"
        )
    # Encoders pretrained without a pooler get a fresh one with the head; anything else missing is damage.
    damaged = [
        name for name in missing if name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name
    ]
    if damaged:
        raise CheckpointError(
            f"{checkpoint}: {len(damaged)} weights of the encoder are missing or of another shape than "
            f"config.json says, first {damaged[0]}"
        )
    silence_padding(model)
    return model, missing


def require_finite(checkpoint: str | Path, model: PreTrainedModel) -> None:
    """Refuse weights that are no numbers.

    Raises:
        CheckpointError: one of them is NaN or infinite.
    """
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise CheckpointError(
                f"{checkpoint}: weight {name} {tuple(weight.shape)} holds NaN or infinite values"
            )


def _check_learned_pattern(
    checkpoint: str | Path, model: PreTrainedModel, report: Any, missing: Sequence[str], *, may_lack: bool
) -> list[str]:
    """Return `missing` without the weights of a learned pattern, which begin afresh where they `may_lack`."""
    own = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, AxisLayer | AdaptiveDiagonals)
        for name, _ in module.named_parameters()
    }
    for name, stored, expected in report["mismatched_keys"]:
        if name in own:
            raise CheckpointError(
                f"{checkpoint}: {name} of the learned pattern has shape {tuple(stored)}, the encoder needs "
                f"{tuple(expected)}: fine-tune it again with `sparse-serve finetune`"
            )
    lacking = own & set(missing)
    if lacking and not may_lack:
        raise CheckpointError(
            f"{checkpoint} lacks {len(lacking)} of the weights of the learned pattern, first {min(lacking)}: "
            "fine-tune it with `sparse-serve finetune`"
        )
    if lacking:
        for module in learned_modules(model):
            module.reset_parameters()
    return [name for name in missing if name not in own]


def _looks_like_path(checkpoint: str | Path) -> bool:
    text = str(checkpoint)
    return (
        isinstance(checkpoint, Path)
        or text.startswith((".", "/", "~"))
        or text.count("/") > 1
        or Path(text).exists()
    )


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
