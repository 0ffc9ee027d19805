"""Small tokenizers, graphs of one tokenizer node, and its answers held against the `tokenizers` library."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from sparse_export.graph.tokenizer.node import tokenizer_model
from sparse_export.graph.tokenizer.tables import TokenizerTables

Array = npt.NDArray[Any]
Texts = Sequence[str] | Sequence[tuple[str, str]]

OPSET, IR_VERSION = 17, 9

PACKED = ("input_ids", "token_type_ids", "positions", "offsets")


def word_piece(tokens: str, normalizer: normalizers.BertNormalizer) -> Tokenizer:
    """Return a BERT tokenizer of these tokens, among them [UNK], [CLS], [SEP] and [MASK]."""
    vocabulary = {token: number for number, token in enumerate(tokens.split())}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = (vocabulary[token] for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", first), ("[SEP]", last)],
    )
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def byte_level_bpe(texts: Sequence[str], size: int, *, add_prefix_space: bool = False) -> Tokenizer:
    """Train a RoBERTa tokenizer of so many tokens on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<mask>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def shaped_model(
    tables: TokenizerTables,
    max_length: int,
    *,
    text_shape: Sequence[str | int] | None = ("batch", 1),
    output_shapes: bool = True,
    **graph: Any,
) -> onnx.ModelProto:
    """Return a tokenizer alone, `graph` as `tokenizer_model` takes it, for inputs of any shape."""
    model = tokenizer_model(tables, max_length, OPSET, IR_VERSION, **graph)
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, text_shape))
    for value in model.graph.output:
        if not output_shapes:
            value.type.tensor_type.ClearField("shape")
    return model


class GraphTokenizer:
    """A tokenizer node in a session of its own; `graph` is what `shaped_model` takes."""

    def __init__(
        self, tables: TokenizerTables, max_length: int, library: Path, *, threads: int = 1, **graph: Any
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(str(library))
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        model = shaped_model(tables, max_length, **graph)
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, texts: Texts) -> dict[str, Array]:
        return self.run(feeds(texts))

    def run(self, columns: dict[str, Array]) -> dict[str, Array]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, columns), strict=True))


def feeds(texts: Texts) -> dict[str, Array]:
    columns = {"TEXT": [text if isinstance(text, str) else text[0] for text in texts]}
    if texts and not isinstance(texts[0], str):
        columns["TEXT_PAIR"] = [text[1] for text in texts]
    return {name: np.array(column, dtype=object).reshape(-1, 1) for name, column in columns.items()}


def cutting(tokenizer: Tokenizer, max_length: int, side: str = "right") -> Tokenizer:
    """Return a copy that cuts as a served model does."""
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.enable_truncation(max_length, strategy="longest_first", direction=side)
    return copy


def differing(graph: GraphTokenizer, tokenizer: Tokenizer, texts: Texts, size: int = 128) -> list[Any]:
    """Return the texts that the node does not answer as the library does, `tokenizer` from `cutting`.

    The library is asked without offsets where the node has none.
    """
    found: list[Any] = []
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        answers = graph(batch)
        encode = tokenizer.encode_batch if "offsets" in answers else tokenizer.encode_batch_fast
        for text, encoding, row in zip(batch, encode(list(batch)), rows_of(answers), strict=True):
            if not is_same(row, encoding):
                found.append(text)
    return found


def rows_of(answers: dict[str, Array]) -> Iterator[dict[str, list[Any]]]:
    """Cut packed answers into those of each row."""
    borders = answers["cu_seqlens"].tolist()
    assert borders[0] == 0
    assert borders[-1] == len(answers["input_ids"])
    for row, (begin, end) in enumerate(pairwise(borders)):
        packed = {name: answers[name][begin:end] for name in PACKED if name in answers}
        columns = {name: answers[name][row] for name in ("token_count", "truncated", "invalid_at")}
        yield {name: array.tolist() for name, array in (packed | columns).items()}


def is_same(row: dict[str, list[Any]], encoding: Encoding) -> bool:
    expected: dict[str, list[Any]] = {
        "input_ids": encoding.ids,
        "token_type_ids": encoding.type_ids,
        "positions": list(range(len(encoding))),
        "token_count": [len(encoding)],
        "truncated": [bool(encoding.overflowing)],
        "invalid_at": [-1],
    }
    if "offsets" in row:
        expected["offsets"] = list(map(list, encoding.offsets))
    return row == expected
