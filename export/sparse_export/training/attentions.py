"""Which attentions a command line names: one, or those that a sweep compares."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparse_export.attention.resolve import DEFAULT_LAMBD, resolve_attention
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, load_config
from sparse_export.encoders.diagonals import learned_offsets
from sparse_export.encoders.spec import ModelSpec
from sparse_serve.errors import OptionError
from sparse_serve.tasks import Embedding

_DEFAULT = AttentionSpec(DEFAULT_LAMBD)
_SOFTMAX = AttentionSpec().name

_BLANKS = re.compile(r"\s*([,+/])\s*")
_ALTERNATIVES = re.compile(r"(local|global|random)(\d{1,7}(?:/\d{1,7})+)")


@dataclass(frozen=True)
class Curve:
    """Runs of a sweep that differ in one number.

    Attributes:
        varies: what the number is: "local", "global" or "random" for the size of one, or "lambda".
        label: what all of them have besides, by name; empty for nothing.
        runs: their names by the number.
    """

    varies: str
    label: str
    runs: Mapping[float, str]


@dataclass(frozen=True)
class Attentions:
    """What is to be trained with.

    Attributes:
        by_name: the attention of each run; the names are those of folders.
        curves: which of the runs are one another's neighbours.
    """

    by_name: Mapping[str, AttentionSpec]
    curves: Sequence[Curve] = ()


def choose_attentions(
    encoder: str,
    text: str | None,
    lambdas: Sequence[float],
    pattern_from: str | None,
    seed: int,
    revision: str | None = None,
    *,
    keeps_softmax: bool = False,
) -> Attentions:
    """Read what the options `--attention`, `--lambda` and `--pattern-from` say.

    Args:
        encoder: what is trained; where nothing names an attention, its own is kept, if it has one recorded.
        text: names of attentions (see `AttentionSpec.parse`), with commas between. Where a name has several
            sizes with strokes between, `local2/16+global0/1`, it stands for all combinations; a global or
            random size of 0 leaves that out.
        lambdas: λ of sparsegen-lin; several make one run each.
        pattern_from: a checkpoint whose diagonals, learned or fixed, join each pattern as fixed ones. Where
            nothing names an attention, its own λ is kept, and what joined them there.
        seed: of random keys.
        revision: of an encoder on the hub.
        keeps_softmax: whether an encoder's softmax stays where nothing names an attention, as it is to where
            tasks are added to a trained model; it becomes sparsegen otherwise.

    Raises:
        OptionError: an unknown name, a contradiction, a λ out of range or given twice, or several of both.
        CheckpointError: `pattern_from`, or an encoder that was asked, cannot be loaded.
    """
    lambd = lambdas[0] if lambdas else None
    if text is not None:
        chosen = _named(text, lambd, seed)
    elif pattern_from is not None:
        chosen = _only(_fixed_part(pattern_from, lambd))
    else:
        own = ModelSpec.of(load_config(encoder, revision)).attention
        default = None if keeps_softmax else _DEFAULT
        chosen = _only(resolve_attention(own, None, lambd, default=default))
    if pattern_from is not None:
        diagonals = _diagonals_of(pattern_from, encoder, revision)
        joined = {name: _join(attention, diagonals) for name, attention in chosen.by_name.items()}
        chosen = replace(chosen, by_name=joined)
    return _with_lambdas(chosen, lambdas) if len(lambdas) > 1 else chosen


def _only(attention: AttentionSpec) -> Attentions:
    return Attentions({attention.name: attention})


def _named(text: str, lambd: float | None, seed: int) -> Attentions:
    entries: dict[frozenset[AttentionSpec], str] = {}
    runs: dict[AttentionSpec, str] = {}
    curves: list[Curve] = []
    listed = _BLANKS.sub(r"\1", text.strip().lower()).split(",")
    for each in listed:
        if not each:
            raise OptionError(
                f"--attention is {text!r}: one of its names is empty; give names with commas between, for "
                "example softmax,local2"
            )
        names, own = _expand(each)
        # λ is for the others; softmax alone refuses it.
        is_beside_others = each == _SOFTMAX and len(listed) > 1
        own_lambd = None if is_beside_others else lambd
        specs = {
            name: resolve_attention(AttentionSpec(), name, own_lambd, seed=seed, default=_DEFAULT)
            for name in names
        }
        same = entries.get(frozenset(specs.values()))
        if same is not None:
            raise OptionError(f"--attention names {same} and {each}, which are the same; give each once")
        entries[frozenset(specs.values())] = each
        # What sizes have in common, or one of them with a name, is trained once, by its first name.
        kept = {name: runs.setdefault(spec, name) for name, spec in specs.items()}
        curves += [
            replace(curve, runs={size: kept[name] for size, name in curve.runs.items()}) for curve in own
        ]
    by_name = {name: spec for spec, name in runs.items()}
    return Attentions(by_name, curves)


def _expand(text: str) -> tuple[list[str], list[Curve]]:
    """Return the names that a name with alternatives stands for, and the curves on which they are."""
    if not all(text.split("+")):
        return [text], []  # which its parser refuses
    terms = [_sizes_of(term) for term in text.split("+")]
    # Along the abscissa goes what has most sizes.
    widest = max(range(len(terms)), key=lambda index: len(terms[index][1]))
    kind, sizes = terms[widest]
    names: list[str] = []
    curves = []
    for others in itertools.product(*(each.values() for _, each in terms[:widest] + terms[widest + 1 :])):
        named = {size: _joined(*others[:widest], term, *others[widest:]) for size, term in sizes.items()}
        names += named.values()
        if len(named) > 1:
            curves.append(Curve(kind, _joined(*others), named))
    if "" in names and len(names) > 1:
        raise OptionError(f"attention {text!r}: where all sizes are 0 nothing is allowed; leave that out")
    return names, curves


def _sizes_of(term: str) -> tuple[str, dict[float, str]]:
    """Return the kind of pattern that has several sizes, and its terms by size: empty where it is nothing."""
    match = _ALTERNATIVES.fullmatch(term)
    if match is None:
        return "", {0: term}
    kind, sizes = match.groups()
    allows_nothing = () if kind == "local" else (0,)
    numbers = dict.fromkeys(map(int, sizes.split("/")))
    return kind, {size: "" if size in allows_nothing else f"{kind}{size}" for size in numbers}


def _joined(*terms: str) -> str:
    return "+".join(filter(None, terms))


def _fixed_part(checkpoint: str, lambd: float | None) -> AttentionSpec:
    """Return a checkpoint's attention with what its pattern does not learn; `lambd` in place of its own."""
    own = ModelSpec.of(load_config(checkpoint)).attention
    if own.pattern is None:
        raise _no_diagonals(checkpoint)
    pattern = replace(own.pattern, axis=False, diagonal=None, offsets=((0,),))
    return AttentionSpec(own.lambd if lambd is None else lambd, pattern)


def _diagonals_of(checkpoint: str, encoder: str, revision: str | None) -> tuple[tuple[int, ...], ...]:
    """Return the learned or fixed diagonals of a checkpoint: one set, or one for each layer."""
    config = load_config(checkpoint)
    spec = ModelSpec.of(config)
    pattern = spec.attention.pattern
    if pattern is None or not (pattern.diagonal or pattern.offsets):
        raise _no_diagonals(checkpoint)
    offsets = pattern.offsets
    if pattern.diagonal is not None:
        # A pre-trained encoder answers no task: it is loaded as one that embeds, which takes no head.
        task = None if spec.tasks else Embedding(size=config.hidden_size)
        # With the main one, which a learned diagonal never lacks.
        offsets = tuple((0, *each) for each in learned_offsets(load_checkpoint(checkpoint, task=task)))
    layers = load_config(encoder, revision).num_hidden_layers
    if len(offsets) not in (1, layers):
        raise OptionError(
            f"--pattern-from {checkpoint} has diagonals for {len(offsets)} layers, and {encoder} has "
            f"{layers}; give a checkpoint of as many layers, or one trained with --attention diagonal"
        )
    return offsets


def _no_diagonals(checkpoint: str) -> OptionError:
    attention = ModelSpec.of(load_config(checkpoint)).attention
    return OptionError(
        f"--pattern-from {checkpoint} has no diagonals: its attention is {attention.name}; give a checkpoint "
        "trained with --attention diagonal or layer-diagonal"
    )


def _join(attention: AttentionSpec, offsets: tuple[tuple[int, ...], ...]) -> AttentionSpec:
    pattern = attention.pattern
    if pattern is None or pattern.diagonal is not None:
        raise OptionError(
            f"--pattern-from fixes the diagonals of a pattern, and --attention is {attention.name}; leave "
            "--attention out, or name what joins the diagonals, for example global1"
        )
    return replace(attention, pattern=replace(pattern, offsets=offsets))


def _with_lambdas(chosen: Attentions, lambdas: Sequence[float]) -> Attentions:
    if len(chosen.by_name) > 1:
        raise OptionError(
            f"--attention names {len(chosen.by_name)} attentions and --lambda {len(lambdas)} values; "
            "give several of one and one of the other"
        )
    (attention,) = chosen.by_name.values()
    names = {lambd: f"lambda_{lambd:g}" for lambd in lambdas}
    if len(set(names.values())) < len(lambdas):
        raise OptionError(f"--lambda is {','.join(map('{:g}'.format, lambdas))}; give each λ once")
    by_name = {name: replace(attention, lambd=lambd) for lambd, name in names.items()}
    return Attentions(by_name, [Curve("lambda", "", names)])
