"""Encoders with the heads that they are pre-trained with."""

from dataclasses import replace
from pathlib import Path

import torch
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
    set_seed,
)

from sparse_export.checkpoint import (
    load_config,
    load_model,
    random_model,
    require_finite,
    settle_positions,
)
from sparse_export.encoders.families import input_names, joins_neighbours
from sparse_export.encoders.positions import has_fixed_positions
from sparse_export.encoders.spec import ModelSpec
from sparse_export.pretraining.options import PretrainOptions
from sparse_export.tasks.head import Models
from sparse_serve.errors import CheckpointError, OptionError

# Others have a model "for pre-training" too, but pre-train with something else.
_TELLING_WHAT_FOLLOWS = ("bert", "mobilebert")


def new_language_model(encoder: str | Path, options: PretrainOptions) -> PreTrainedModel:
    """Load an encoder with the head that tells masked tokens, and for `options.nsp` the one for sentences.

    Models that the checkpoint lacks are random; where a family ties them, output embeddings are the input's.

    Returns:
        The model in float32, in training mode, attending as `options` say.

    Raises:
        OptionError: the encoder's family has no next-sentence prediction, or its positions were learned and
            are to be fixed ones.
        CheckpointError: the encoder cannot be loaded.
    """
    config = load_config(encoder, options.revision)
    if options.nsp:
        _require_segments(config)
    own = ModelSpec.of(config)
    spec = replace(
        own.without_tasks(), attention=options.attention, positions=options.positions or own.positions
    )
    spec.store(config)
    set_seed(options.seed)
    if options.from_scratch:
        model = random_model(config, _heads(options.nsp))
    else:
        is_own = spec.attention == own.attention
        heads = _heads(options.nsp)
        model, _ = load_model(
            encoder, config, heads, is_own=is_own, other_head=True, revision=options.revision
        )
    is_fixed = own.positions == "sinusoidal" and has_fixed_positions(model)
    if options.positions == "sinusoidal" and not (options.from_scratch or is_fixed):
        raise OptionError(
            f"--positions sinusoidal would replace those that {encoder} was trained with; give "
            "--from-scratch, or leave it out"
        )
    settle_positions(model, is_random=options.from_scratch)
    _keep_padding_silent(model)
    return model.train()


def load_language_model(folder: Path, *, nsp: bool) -> PreTrainedModel:
    """Load what was pre-trained, in evaluation mode, with all its heads.

    Raises:
        CheckpointError: unreadable, without a head, or with weights that are NaN or infinite.
    """
    config = load_config(folder)
    model, missing = load_model(folder, config, _heads(nsp), is_own=True)
    if missing:
        raise CheckpointError(f"{folder} has no language-model head ({', '.join(missing)} missing)")
    require_finite(folder, model)
    return model.eval()


def _keep_padding_silent(model: PreTrainedModel) -> None:
    """Keep zero what `families.silence_padding` made zero; output embeddings that are the input's move it."""
    if joins_neighbours(model.config):
        padding = torch.tensor([model.config.pad_token_id])
        embeddings = model.get_input_embeddings().weight
        embeddings.register_hook(lambda gradient: gradient.index_fill(0, padding.to(gradient.device), 0))


def _heads(nsp: bool) -> Models:
    heads: Models = MODEL_FOR_PRETRAINING_MAPPING if nsp else MODEL_FOR_MASKED_LM_MAPPING
    return heads


def _require_segments(config: PreTrainedConfig) -> None:
    if config.model_type not in _TELLING_WHAT_FOLLOWS:
        raise OptionError(
            f"--nsp is for encoders of the families {' and '.join(_TELLING_WHAT_FOLLOWS)}, and this is a "
            f"{config.model_type} model, which has no head for it; leave it out"
        )
    if "token_type_ids" not in input_names(config):
        raise OptionError("--nsp needs an encoder with two segments, and this one has one; leave it out")
