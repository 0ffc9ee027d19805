"""The graphs of an entry, each judged before it is one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from transformers import PreTrainedModel

from sparse_export.attention.spec import attention_of
from sparse_export.encoders.spec import ModelSpec
from sparse_export.graph.export import GraphKind, GraphTarget, export_graph
from sparse_export.graph.guarded import guarded_graph
from sparse_export.graph.int8 import quantized_graph
from sparse_export.graph.runs import in_runs
from sparse_export.graph.text import text_graph
from sparse_export.parity.examples import Examples, batches
from sparse_export.parity.gate import ParityReport, check_parity, runs_difference, twin_difference
from sparse_export.parity.moments import input_moments
from sparse_export.parity.quality import QualityReport, check_quality
from sparse_export.parity.questions import Questions
from sparse_export.parity.texts import TextGate, TextParity
from sparse_export.tasks import model_head
from sparse_serve.errors import GateError
from sparse_serve.repository.manifest import TargetCpu
from sparse_serve.runs import RUN_TOKENS
from sparse_serve.tasks import Task

Progress = Callable[[str], None]
"""Called with what is being done, or with what a user should know, in a few words."""

DENSE_TWINS: tuple[GraphKind, ...] = ("packed_dense", "padded_fused", "padded_eager")
SPARSE_TWIN: GraphKind = "padded_sparse"
_GRAPH_FILE = "model.onnx"


@dataclass(frozen=True)
class WantedGraphs:
    """What is asked for beside the public graph.

    Attributes:
        target_cpu: what the processors have that quantized graphs are made for; None for graphs as traced.
        max_loss: how much a quantized graph may lose (see `quality.check_quality`).
        token_model: a graph of token ids beside one that takes text.
        dense: loads the model with softmax in the place of its own attention, with given tasks, for the
            twins; None where they are not wanted.
    """

    target_cpu: TargetCpu | None
    max_loss: float | None
    token_model: bool
    dense: Callable[[Mapping[str, Task]], PreTrainedModel] | None


@dataclass(frozen=True)
class Twin:
    """The same weights in another graph, to compare with.

    Attributes:
        graph: its file.
        difference: the largest of a number of its output from torch with the same attention, before it is
            quantized.
    """

    graph: Path
    difference: float


@dataclass(frozen=True)
class EntryGraphs:
    """The graphs, and what the gates saw of them.

    Attributes:
        public: of the public model, from text, or behind a server-side tokenizer.
        of_ids: of token ids, beside one that takes text; None where there is none.
        twins: the twins by variant: dense ones, and of a model with sparsegen-lin over all keys an eager one.
        parity: of the graph that answers, on texts, before it is quantized.
        quality: the same on labelled texts; None without them, or where the graph is quantized.
        quantized: of the quantized graph, on labelled texts where there are any; None where there is none.
        texts: of the tokenizer in the graph; None where it is in the server.
    """

    public: Path
    of_ids: Path | None
    twins: Mapping[str, Twin]
    parity: ParityReport
    quality: ParityReport | None
    quantized: QualityReport | None
    texts: TextParity | None


def make_graphs(
    model: PreTrainedModel,
    target: GraphTarget,
    asked: Questions,
    folder: Path,
    wanted: WantedGraphs,
    progress: Progress,
) -> EntryGraphs:
    """Trace a model, have each graph judged, and write the files below `folder`.

    Raises:
        GateError: a graph differs from torch by more than is accepted.
    """
    return _Maker(model, target, asked, folder, wanted, progress).make()


@dataclass(frozen=True)
class _Maker:
    model: PreTrainedModel
    target: GraphTarget
    asked: Questions
    folder: Path
    wanted: WantedGraphs
    progress: Progress

    def make(self) -> EntryGraphs:
        asked, progress = self.asked, self.progress
        progress("tracing the graph")
        if asked.reader is None:
            traced = self._save(self._taking_ids(self.model, "packed"), "ids")
        else:
            traced = self._save(export_graph(self.model, "tokens", self.target), "tokens")
        progress(f"comparing torch and ONNX Runtime on {len(asked.texts.texts)} texts")
        parity = check_parity(self.model, traced, asked.library, asked.texts, asked.atol, asked.provider)
        parity.require()
        if asked.labelled is not None:
            progress(f"comparing the task metrics on {len(asked.labelled.texts)} labelled texts")
        quality = quantized = None
        core = self._in_precision(traced)
        if self.wanted.target_cpu is not None:
            quantized = self._quality(core, asked.texts)
        elif asked.labelled is not None:
            quality = check_parity(
                self.model, core, asked.library, asked.labelled, asked.atol, asked.provider
            )
            quality.require()
        of_ids = texts = None
        if asked.reader is None:
            public = self._in_runs(self.model, core, parity.accepted)
        else:
            progress("comparing the tokenizer in the graph with the checkpoint's own")
            public = self._taking_text(self.model, core, asked.reader, "text")
            texts = asked.reader.check(self.model, public, core, parity.accepted)
            of_ids = self._of_ids() if self.wanted.token_model else None
        return EntryGraphs(public, of_ids, self._twins(parity.accepted), parity, quality, quantized, texts)

    def _of_ids(self) -> Path:
        self.progress("tracing the graph of token ids")
        traced = self._save(self._taking_ids(self.model, "packed"), "ids")
        asked = self.asked
        parity = check_parity(self.model, traced, asked.library, asked.padded, asked.atol, asked.provider)
        parity.require()
        core = self._in_precision(traced)
        if self.wanted.target_cpu is not None:
            self._quality(core, asked.padded)
        return self._in_runs(self.model, core, parity.accepted)

    def _quality(self, core: Path, texts: Examples) -> QualityReport:
        """Judge a quantized graph on labelled texts, or where there are none on these.

        Raises:
            GateError: it loses more than is accepted.
        """
        asked = self.asked
        examples = texts if asked.labelled is None else asked.labelled
        quality = check_quality(self.model, core, asked.library, examples, self.wanted.max_loss)
        quality.require()
        return quality

    def _twins(self, accepted: float) -> dict[str, Twin]:
        """Write the twins, where they are wanted."""
        if self.wanted.dense is None:
            return {}
        dense = self.wanted.dense(ModelSpec.of(self.model.config).tasks)
        twins: dict[str, Twin] = {variant: self._twin(dense, variant, accepted) for variant in DENSE_TWINS}
        attention = attention_of(self.model.config)
        if attention.pattern is None and attention.lambd is not None:
            twins[SPARSE_TWIN] = self._twin(self.model, SPARSE_TWIN, accepted)
        return twins

    def _twin(self, model: PreTrainedModel, variant: GraphKind, accepted: float) -> Twin:
        asked = self.asked
        self.progress(f"tracing the {variant.replace('_', ' ')} twin")
        if asked.reader is None:
            twin = self._taking_ids(model, variant)
        else:
            kind: GraphKind = "tokens_dense" if variant == "packed_dense" else variant
            twin = export_graph(model, kind, self.target)
        graph = self._save(twin, f"twins/{variant}")
        difference = twin_difference(model, graph, asked.library, asked.texts, asked.provider)
        if not difference <= accepted:
            raise GateError(
                f"parity not met: the {variant} twin differs from torch by up to {difference:.3g} in its "
                f"{asked.output}, accepted is {accepted:g} (--atol); nothing was written"
            )
        graph = self._in_precision(graph)
        if asked.reader is None:
            graph = self._in_runs(model, graph, accepted)
        else:
            graph = self._taking_text(model, graph, asked.reader, f"text_twins/{variant}")
        return Twin(graph, difference)

    def _taking_ids(self, model: PreTrainedModel, kind: GraphKind) -> onnx.ModelProto:
        """Return the graph that takes what clients send of a padded batch."""
        return guarded_graph(export_graph(model, kind, self.target), model)

    def _taking_text(self, model: PreTrainedModel, core: Path, reader: TextGate, name: str) -> Path:
        """Write a graph of tokens, or of a padded batch, once more: with the tokenizer in front of it."""
        proto = text_graph(onnx.load(core), model_head(model), reader.reading, self.target.run_tokens)
        return self._save(proto, name)

    def _in_runs(self, model: PreTrainedModel, whole: Path, accepted: float) -> Path:
        """Write a graph of token ids once more: computing a few rows at a time.

        Raises:
            GateError: that changes an answer.
        """
        asked, name = self.asked, whole.parent.relative_to(self.folder)
        graph = self._save(in_runs(onnx.load(whole)), f"runs/{name}")
        difference = runs_difference(model, whole, graph, asked.library, asked.padded, asked.provider)
        if not difference <= accepted:
            raise GateError(
                f"parity not met: the graph differs by up to {difference:.3g} from itself where it computes "
                f"a few rows at a time, accepted is {accepted:g} (--atol); nothing was written"
            )
        if self.target.run_tokens == RUN_TOKENS:
            return graph
        # Judged in short runs, of which the texts fill several, and written with longer ones.
        return self._save(in_runs(onnx.load(whole), self.target.run_tokens), f"long_runs/{name}")

    def _in_precision(self, traced: Path) -> Path:
        """Return the graph that is served for one that was traced: it, or where it is asked for quantized."""
        if self.wanted.target_cpu is None:
            return traced
        moments, calibration = None, self.asked.calibration
        if calibration is not None:
            self.progress(f"looking at what linear layers read of {len(calibration.texts)} texts")
            run = list(batches(calibration.rows, self.model.config))
            moments = input_moments(traced, self.asked.library, run)
        quantized = quantized_graph(onnx.load(traced), self.wanted.target_cpu, moments)
        return self._save(quantized, f"quantized/{traced.parent.relative_to(self.folder)}")

    def _save(self, proto: onnx.ModelProto, name: str) -> Path:
        graph = self.folder / name / _GRAPH_FILE
        graph.parent.mkdir(parents=True)
        onnx.save(proto, graph)
        return graph
