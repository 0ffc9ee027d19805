"""Checkpoints: Transformers folders (safetensors) whose `config.json` remembers what the model is (see
`spec`).

SSAF and fixed patterns add no weights, so any softmax checkpoint can be loaded as one of theirs; extensions
do, and their weights are part of the checkpoint. A stock `AutoModel` knows nothing of them: it loads such a
checkpoint as dense softmax attention. `load_checkpoint` loads it as it was trained.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)

import sparse_export.attention.implementations  # noqa: F401  registers "sparsegen" and "axis"
from sparse_export.attention.spec import AttentionSpec
from sparse_export.encoders.extension import extension_weights
from sparse_export.encoders.extensions import attach_extensions
from sparse_export.encoders.families import family_of, silence_padding
from sparse_export.encoders.positions import fix_positions, has_fixed_positions
from sparse_export.encoders.spec import ModelSpec, no_head
from sparse_export.tasks import head_of_spec, task_by_architecture
from sparse_export.tasks.head import Models
from sparse_serve.digests import file_digest
from sparse_serve.errors import CheckpointError, OptionError, SparseServeError, first_line
from sparse_serve.repository.contents import MANIFEST_NAME
from sparse_serve.tasks import Regression, Task

# What of a folder decides what a checkpoint answers; records of its training do not.
_CONTENT = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)


def load_checkpoint(
    checkpoint: str | Path,
    attention: AttentionSpec | None = None,
    task: Task | Mapping[str, Task] | None = None,
    revision: str | None = None,
) -> PreTrainedModel:
    """Load a trained model with the attention and the task it was trained with, or with others.

    Args:
        checkpoint: a Transformers folder, or the id of a model on the hub.
        attention: overrides the checkpoint's own; it is recorded in the returned model's config.
        task: overrides the checkpoint's own, for example with an embedding, which needs no head; of a
            checkpoint of several tasks some of them, by their names: nothing of the others is loaded.
        revision: of a model on the hub: a branch, a tag or a commit.

    Returns:
        The model in float32, in evaluation mode; where padding would show in the embedding beside it, that of
        padding is zero (`families.silence_padding`).

    Raises:
        CheckpointError: unreadable, of an unsupported family, without a task or the head for it, or with
            weights that are NaN or infinite.
        OptionError: the attention does not fit the encoder.
    """
    config = load_config(checkpoint, revision)
    spec = ModelSpec.of(config)
    own = spec
    if task is not None:
        spec = spec.with_tasks(task)
    if attention is not None:
        spec = spec.with_attention(attention)
    if not spec.tasks:
        raise no_head(checkpoint, config)
    head = head_of_spec(spec)
    head.configure(config)
    spec.store(config)
    model, missing = load_model(checkpoint, config, head.models, is_own=spec == own, revision=revision)
    if missing:
        what = ", ".join(task.type.replace("_", " ") for task in spec.tasks.values())
        raise CheckpointError(
            f"{checkpoint} has no head for {what} ({', '.join(missing)} missing): fine-tune it first with "
            "`sparse-serve finetune`"
        )
    require_finite(checkpoint, model)
    return model.eval()


def new_model(
    encoder: str | Path,
    attention: AttentionSpec,
    task: Task | Mapping[str, Task],
    seed: int = 0,
    *,
    extensions: Mapping[str, Mapping[str, Any]] | None = None,
    from_scratch: bool = False,
    revision: str | None = None,
) -> PreTrainedModel:
    """Load a pretrained encoder and put a fresh head for `task` on it, or for each of several.

    A head that the checkpoint has for the same labels, and of several tasks by the same name, is trained
    further, its rows in the order of `task`'s, and so is what it has of extensions.

    Args:
        encoder: a Transformers folder, or the id of a model on the hub.
        attention: what the model attends with, in training and ever after.
        task: what it is to answer; several tasks by their names.
        extensions: settings of extensions, by their names; None for those of the checkpoint, but for what
            several tasks have and one has not.
        seed: seeds the initial weights that are not the encoder's.
        from_scratch: take the encoder's architecture alone, all weights random ("Np" in the SSAF paper).
        revision: of a model on the hub: a branch, a tag or a commit.

    Returns:
        The model in float32, in training mode.

    Raises:
        CheckpointError: unreadable or of an unsupported family.
        OptionError: the attention does not fit the encoder.
    """
    config = load_config(encoder, revision)
    own = ModelSpec.of(config)
    kept = own.without_tasks() if isinstance(task, Task) else own
    spec = kept.with_attention(attention).with_tasks(task)
    if extensions is not None:
        spec = replace(spec, extensions=extensions)
    head = head_of_spec(spec)
    head.configure(config)
    spec.store(config)
    set_seed(seed)
    if from_scratch:
        model = random_model(config, head.models)
    else:
        is_own = attention == own.attention
        model, missing = load_model(
            encoder, config, head.models, is_own=is_own, other_head=True, revision=revision
        )
        for name in spec.tasks:
            if name in own.tasks:
                _fit_head(model, name, own.tasks[name], head.models, missing)
    settle_positions(model, is_random=from_scratch)
    return model.train()


def _fit_head(model: PreTrainedModel, name: str, own: Task, models: Models, missing: Sequence[str]) -> None:
    """Have the head of a task, which was that of `own`, answer in the order of its labels, or at random for
    other ones.

    Labels that a checkpoint does not name, `LABEL_0` and so on, are the whole numbers; the name of a value
    says nothing. What is `missing` is random already.
    """
    spec = ModelSpec.of(model.config)
    task = spec.tasks[name]
    before, labels = ([name.removeprefix("LABEL_") for name in each.labels] for each in (own, task))
    if before == labels or (own.type == task.type == Regression.type):
        return
    encoder, several = f"{model.base_model_prefix}.", f"tasks.{name}."
    head = {
        each: weight
        for each, weight in model.named_parameters()
        if (each.startswith(several) if spec.names_tasks else not each.startswith(encoder))
    }
    if head.keys() & set(missing):
        return
    is_same = sorted(before) == sorted(labels)
    fresh = {} if is_same else dict(random_model(model.config, models).named_parameters())
    places = [before.index(name) for name in labels] if is_same else []
    # Layers before the last may have as many rows as there are labels.
    last = [each for each, weight in head.items() if weight.dim() > 1][-1].removesuffix("weight")
    with torch.no_grad():
        for each, weight in head.items():
            if not is_same:
                weight.copy_(fresh[each])
            elif each.startswith(last):
                weight.copy_(weight[places])


def settle_positions(model: PreTrainedModel, *, is_random: bool) -> None:
    """Keep positions out of training that are fixed ones, as a model's spec says.

    Where the config that it was made of says so of positions that were learned after all, the spec is put
    right.
    """
    spec = ModelSpec.of(model.config)
    if spec.positions != "sinusoidal":
        return
    if is_random or has_fixed_positions(model):
        fix_positions(model)
    else:
        replace(spec, positions="learned").store(model.config)


def save_checkpoint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (safetensors), config with its spec, and tokenizer into `folder`."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # safetensors writes for the owner alone; weights are as readable as the rest of the checkpoint.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)


def load_config(checkpoint: str | Path, revision: str | None = None) -> PreTrainedConfig:
    """Load the config of a checkpoint of a supported family, with a spec, whoever wrote it.

    What a model hands out besides its answer is asked for where it is needed, and all of it by name: a config
    that says otherwise is told so.

    Raises:
        CheckpointError: unreadable or of an unsupported family.
    """
    if not str(checkpoint).strip():
        raise CheckpointError("the name of the checkpoint or encoder is empty: give a folder or a hub id")
    if _looks_like_path(checkpoint) and not (Path(checkpoint) / "config.json").is_file():
        entry = "; it is of an entry of a model repository: give the checkpoint that this was exported from"
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint folder: it has no config.json"
            f"{entry if _is_of_entry(Path(checkpoint)) else ''}"
        )
    try:
        config = AutoConfig.from_pretrained(checkpoint, revision=revision, trust_remote_code=False)
    except Exception as error:  # what Transformers raises of a malformed file has no base of its own
        cause = error.__cause__ if isinstance(error, StrictDataclassError) else None
        reason = first_line(cause or error)
        raise CheckpointError(f"{checkpoint}: config.json cannot be read: {reason}") from error
    try:
        family_of(config)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint} {error}") from None
    if getattr(config, "quantization_config", None) is not None:
        raise _is_quantized(checkpoint, "its config.json has a quantization_config")
    config.output_hidden_states = config.output_attentions = False
    config.return_dict = True
    spec = ModelSpec.of(config)
    if not spec.tasks and (task := task_by_architecture(config)) is not None:
        spec = spec.with_tasks(task)
    spec.store(config)
    return config


def checkpoint_digest(checkpoint: str | Path, revision: str | None = None) -> str | None:
    """Return what changes with the content of a checkpoint, whatever its name.

    Args:
        checkpoint: a Transformers folder, or the id of a model on the hub.
        revision: of a model on the hub: a branch, a tag or a commit.

    Returns:
        Of a folder the sha256 over its config, weights and tokenizer, as 64 hexadecimal digits; of a model on
        the hub its commit, None where that is not known.

    Raises:
        CheckpointError: unreadable or of an unsupported family.
    """
    config = load_config(checkpoint, revision)
    folder = Path(checkpoint)
    if not folder.is_dir():
        return getattr(config, "_commit_hash", None)
    files = sorted({file for pattern in _CONTENT for file in folder.glob(pattern)})
    try:
        lines = [f"{file.name} {file_digest(file)}\n" for file in files]
    except OSError as error:
        raise CheckpointError(f"{checkpoint}: {error.filename} cannot be read: {error.strerror}") from None
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def random_model(config: PreTrainedConfig, models: Models) -> PreTrainedModel:
    """Return a model of this config, which has a spec, with random weights, in float32."""
    attention = ModelSpec.of(config).attention
    # The public from_config knows only its own classes.
    model: PreTrainedModel = _model_class(config, models)._from_config(
        config, attn_implementation=attention.implementation, dtype=torch.float32
    )
    return model


def _model_class(config: PreTrainedConfig, models: Models) -> type[PreTrainedModel]:
    """Return the family's model with this head, and with what its spec adds to the encoder."""
    plain = models.get(type(config), None)
    if plain is None:
        raise CheckpointError(f"the {config.model_type} family has no model with this head")
    spec = ModelSpec.of(config)

    def build(self: PreTrainedModel, config: PreTrainedConfig) -> None:
        try:
            plain.__init__(self, config)
            attach_extensions(self, spec)
        except SparseServeError:
            raise
        except Exception as error:  # whatever an entry out of its range leads to
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise CheckpointError(f"{config.name_or_path}: config.json makes no model: {reason}") from error

    # By the same name, which the config of a checkpoint gives as its architecture.
    return type(plain.__name__, (plain,), {"__init__": build, "__module__": plain.__module__})


def load_model(
    checkpoint: str | Path,
    config: PreTrainedConfig,
    models: Models,
    *,
    is_own: bool,
    other_head: bool = False,
    revision: str | None = None,
) -> tuple[PreTrainedModel, list[str]]:
    """Load a checkpoint's weights into a model with a head.

    Args:
        checkpoint: a Transformers folder, or the id of a model on the hub.
        config: the checkpoint's, or a changed one; it has the spec of the model.
        models: which head.
        is_own: whether the spec is the checkpoint's own, which is then to blame for what does not fit.
        other_head: the checkpoint may have another one, of other sizes, and lack what an extension learns.
        revision: of a model on the hub.

    Returns:
        The model in float32, and the names of the head's weights that the checkpoint lacks: they are random.

    Raises:
        CheckpointError: the weights cannot be loaded, or some of the encoder's are missing.
        OptionError: the spec, where it is not the checkpoint's own, does not fit the encoder.
    """
    attention = ModelSpec.of(config).attention
    try:
        model, report = _model_class(config, models).from_pretrained(
            checkpoint,
            config=config,
            revision=revision or "main",
            attn_implementation=attention.implementation,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # the report says more of them than the error
            output_loading_info=True,
        )
    except OptionError as error:
        if not is_own:
            raise
        raise CheckpointError(f"{checkpoint}: config.json: {error}") from None
    except CheckpointError:
        raise
    except Exception as error:  # as above
        raise CheckpointError(f"{checkpoint}: the weights cannot be loaded: {first_line(error)}") from error
    _refuse_integers(checkpoint)
    missing = sorted(report["missing_keys"] | {name for name, *_ in report["mismatched_keys"]})
    missing = _check_extensions(checkpoint, model, report, missing, may_lack=other_head)
    if report["mismatched_keys"] and not other_head:
        name, stored, expected = min(report["mismatched_keys"])
        raise CheckpointError(
            f"{checkpoint}: {name} has shape {tuple(stored)}, config.json makes it {tuple(expected)}: "
            "they are not of one checkpoint"
        )
    # Encoders pretrained without a pooler get a fresh one with the head; anything else missing is damage.
    is_bare = model.base_model is model
    prefix = "" if is_bare else f"{model.base_model_prefix}."
    damaged = [name for name in missing if name.startswith(prefix) and ".pooler." not in f".{name}"]
    if damaged:
        raise CheckpointError(
            f"{checkpoint}: {len(damaged)} weights of the encoder are missing or of another shape than "
            f"config.json says, first {damaged[0]}"
        )
    silence_padding(model)
    return model, [] if is_bare else missing


def _is_quantized(checkpoint: str | Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint} is quantized already, {why}: take the checkpoint that it was made from"
    )


def _refuse_integers(checkpoint: str | Path) -> None:
    """Refuse a folder's weights that are integers, which are nothing without their scales."""
    types: dict[str, str] = {}
    for part in sorted(Path(checkpoint).glob("model*.safetensors")):
        with safe_open(part, framework="pt") as stored:
            types |= {name: stored.get_slice(name).get_dtype() for name in stored.keys()}  # noqa: SIM118  no mapping
    found = [name for name, dtype in types.items() if name.endswith("weight") and dtype in ("I8", "U8")]
    if found:
        raise _is_quantized(checkpoint, f"{found[0]} is of type {types[found[0]]}")


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


def _check_extensions(
    checkpoint: str | Path, model: PreTrainedModel, report: Any, missing: Sequence[str], *, may_lack: bool
) -> list[str]:
    """Return `missing` without the weights of extensions, which begin afresh where they `may_lack`."""
    own = dict(extension_weights(model))
    for name, stored, expected in report["mismatched_keys"]:
        if name in own:
            raise CheckpointError(
                f"{checkpoint}: {name} of the learned {own[name].parameter_group} has shape {tuple(stored)}, "
                f"the encoder needs {tuple(expected)}: the weights and config.json are not of one checkpoint"
            )
    lacking = own.keys() & set(missing)
    if lacking and not may_lack:
        first = min(lacking)
        raise CheckpointError(
            f"{checkpoint} lacks {len(lacking)} of the weights of the learned {own[first].parameter_group}, "
            f"first {first}: fine-tune it with `sparse-serve finetune`"
        )
    # In the model's order: what begins at random does so by the seed.
    for module in dict.fromkeys(module for name, module in own.items() if name in lacking):
        module.reset_parameters()
    return [name for name in missing if name not in own]


def _is_of_entry(path: Path) -> bool:
    """Whether a path is a model of a repository, one of its versions, or a file in them."""
    from sparse_serve.repository.config import CONFIG_NAME  # noqa: PLC0415  what trains knows no ONNX

    places = (path, *path.absolute().parents[:2]) if path.exists() else ()
    return any((place / name).is_file() for place in places for name in (MANIFEST_NAME, CONFIG_NAME))


def _looks_like_path(checkpoint: str | Path) -> bool:
    text = str(checkpoint)
    return (
        isinstance(checkpoint, Path)
        or text.startswith((".", "/", "~"))
        or text.count("/") > 1
        or Path(text).exists()
    )
