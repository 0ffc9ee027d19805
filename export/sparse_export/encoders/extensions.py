"""The table of extensions, and how an encoder gets those that its spec asks for."""

from transformers import PreTrainedModel

from sparse_export.encoders.axis import AxisExtension
from sparse_export.encoders.diagonals import DiagonalsExtension
from sparse_export.encoders.extension import Extension
from sparse_export.encoders.patterned import attach_pattern
from sparse_export.encoders.projected_attention import ProjectedAttentionExtension
from sparse_export.encoders.relational import RelationalExtension
from sparse_export.encoders.spec import ModelSpec
from sparse_serve.errors import OptionError

EXTENSIONS: tuple[type[Extension], ...] = (
    AxisExtension,
    DiagonalsExtension,
    ProjectedAttentionExtension,
    RelationalExtension,
)


def attach_extensions(model: PreTrainedModel, spec: ModelSpec) -> None:
    """Give an encoder what its spec has besides it: the weights of extensions, and the pattern it attends by.

    Raises:
        OptionError: the spec does not fit the encoder, or has settings of an extension that is not known.
    """
    known = {kind.settings for kind in EXTENSIONS if kind.settings is not None}
    if unknown := spec.extensions.keys() - known:
        raise OptionError(
            f"extensions has unknown entries {', '.join(sorted(unknown))}; known are "
            f"{', '.join(sorted(known))}: use the package that wrote the checkpoint, or a later one"
        )
    for kind in EXTENSIONS:
        extension = kind.of(spec)
        if extension is not None:
            extension.attach(model)
    if spec.attention.pattern is not None:
        attach_pattern(model, spec.attention.pattern)
