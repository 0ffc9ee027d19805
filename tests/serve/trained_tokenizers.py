"""Tokenizers of two kinds, trained on the built-in texts, so that most words are pieces or single tokens."""

from pathlib import Path

from tiny_entry import CLASSES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from sparse_serve.data import read_texts
from sparse_serve.profiling.workload import Tokens
from sparse_serve.tasks import Task


def bert_like(path: Path, task: Task = CLASSES, *, in_graph: bool = False) -> Tokens:
    """A tokenizer that splits words into pieces and marks them."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(read_texts(None), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=128, pad_id=0)
    tokenizer.enable_truncation(16)
    tokenizer.save(str(path))
    return Tokens(path, task, 512, in_graph=in_graph)


def roberta_like(path: Path, task: Task = CLASSES) -> Tokens:
    """A byte-level tokenizer, to which the space before a word belongs to it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>", "<pad>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(read_texts(None), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(path))
    return Tokens(path, task, 512)
