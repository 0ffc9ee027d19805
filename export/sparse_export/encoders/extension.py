"""What may be added to an encoder and has weights of its own.

An extension is asked for by the model's spec, gives its modules to the model as submodules, and takes part in
the forward pass by one of three ways: it marks what a layer may attend to, it adds to what goes into the norm
behind a layer's attention, or it stands before a head. Everything else that must know of weights beside the
encoder's and the head's asks here: loading, freezing, the optimizer, the exported graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn
from transformers import PreTrainedModel

from sparse_export.encoders.families import attention_norm, layers_of

if TYPE_CHECKING:
    from sparse_export.encoders.routing import Routing
    from sparse_export.encoders.spec import ModelSpec


class ExtensionModule(nn.Module):
    """A module that an extension adds to an encoder; its weights live in the checkpoint beside the encoder's.

    Attributes:
        parameter_group: under which name the optimizer keeps its weights apart, with a learning rate of their
            own and without weight decay.
    """

    parameter_group: ClassVar[str]

    def reset_parameters(self) -> None:
        """Begin afresh, where a checkpoint has no weights for it."""
        raise NotImplementedError(type(self).__name__)


class Extension(ABC):
    """What one kind of added weights does in an encoder.

    Attributes:
        settings: the name of its settings among the spec's `extensions`; None where the attention alone asks
            for it.
    """

    settings: ClassVar[str | None] = None

    @classmethod
    @abstractmethod
    def of(cls, spec: "ModelSpec") -> Self | None:
        """Return the extension that a model of this spec has, None where it has none of this kind.

        Raises:
            OptionError: the spec asks for one that cannot be.
        """

    @abstractmethod
    def attach(self, model: PreTrainedModel) -> None:
        """Add the modules to a model whose layers have none yet.

        Raises:
            OptionError: the encoder has no place for them.
        """


def extension_modules(model: nn.Module) -> list[ExtensionModule]:
    """Return the modules that extensions have added, in the order of the model's modules."""
    return [module for module in model.modules() if isinstance(module, ExtensionModule)]


def extension_weights(model: nn.Module) -> Iterator[tuple[str, ExtensionModule]]:
    """Yield the full name of every weight that an extension has added, and its module."""
    for prefix, module in model.named_modules():
        if isinstance(module, ExtensionModule):
            for name, _ in module.named_parameters():
                yield f"{prefix}.{name}", module


def parameter_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the weights that extensions have added, by the group that the optimizer keeps them in."""
    groups: dict[str, list[nn.Parameter]] = {}
    for module in extension_modules(model):
        groups.setdefault(module.parameter_group, []).extend(module.parameters(recurse=True))
    return groups


class ResidualModule(nn.Module):
    """A module of one layer: what it makes of the layer's input joins the attention's residual.

    h' = LayerNorm(h + attention(h) + residual(h)), the form of projected attention layers (PAL).

    Attributes:
        follows_routing: whether it returns the rows alone that a routing has attend; of what others return
            those are taken that the layer computes.
    """

    follows_routing: ClassVar[bool] = False

    def of_task(self, task: str) -> tuple[nn.Module, ...]:
        """Return what one task alone has here; nothing where there is no such."""
        return ()

    def forward(self, hidden: Tensor, routing: "Routing | None" = None) -> Tensor:
        """Return what is added.

        Args:
            hidden: the layer's input, `(B, L, M)`, or `(1, T, M)` where the model runs packed.
            routing: which rows are whose, of a model of several tasks.

        Returns:
            Of the shape of `hidden`.
        """
        raise NotImplementedError(type(self).__name__)


def add_residual(model: PreTrainedModel, index: int, name: str, module: ResidualModule) -> None:
    """Have a residual module of layer `index`, as its submodule `name`, take part in the forward pass.

    Raises:
        OptionError: the family's layers have no norm behind the attention that is as wide as their input.
    """
    norm = attention_norm(model, index)
    layer = layers_of(model)[index]
    setattr(layer, name, module)
    link = _ResidualLink(module)
    # Bound methods: a copy of the model has copies of them.
    layer.register_forward_pre_hook(link.pass_input, with_kwargs=True)
    # Every family with such a norm calls its layers' attention so.
    layer.get_submodule("attention").register_forward_pre_hook(link.take_input, with_kwargs=True)
    norm.register_forward_pre_hook(link.add)


class _ResidualLink:
    """Carries a layer's input to the norm behind its attention.

    Where activations are computed again for the backward pass, a layer's forward is called once more without
    the layer's own hooks, and with the keywords that it had. So the input goes in by one.
    """

    def __init__(self, module: ResidualModule) -> None:
        self._module = module
        self._input: tuple[Tensor, Routing | None] | None = None
        self._rows: Tensor | None = None

    def pass_input(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs | {"layer_input": args[0] if args else kwargs["hidden_states"]}

    def take_input(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._input = kwargs["layer_input"], kwargs.get("routing")
        self._rows = kwargs.get("computed_rows")

    def add(self, norm: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        taken, self._input = self._input, None
        rows, self._rows = self._rows, None
        assert taken is not None
        added = self._module(*taken)
        if rows is not None and not self._module.follows_routing:
            added = added.index_select(1, rows)
        return (args[0] + added, *args[1:])
