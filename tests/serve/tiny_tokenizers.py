"""Tiny tokenizers of the three kinds that encoders come with, which read any text."""

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def wordpiece() -> Tokenizer:
    """BERT's: lower case without accents, pieces of a letter each."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "."]
    tokenizer = Tokenizer(
        models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def bytelevel() -> Tokenizer:
    """RoBERTa's: a piece for each byte, so that one character may be several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", *alphabet]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return tokenizer


def unigram() -> Tokenizer:
    """XLM-RoBERTa's: pieces of a letter each, blanks as a sign of their own."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0)]
    pieces += [(letter, -2.0) for letter in LETTERS] + [(f"▁{letter}", -2.0) for letter in LETTERS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


KINDS = {"wordpiece": wordpiece, "bytelevel": bytelevel, "unigram": unigram}

TEXTS = (
    "",
    "   ",
    "plain words only",
    "emoji 😀 and 👩‍👩‍👧 families, flags 🇩🇪",
    "combining cafe\u0301 and o\u0302\u0323 marks, precomposed café",
    "lines\r\nthat end\r\nin CRLF\r\n",
    "Ünïcödé ﬁne ligatures ½ and Ⅷ",
    "中文没有空格 and עברית",
    "\ufeffa mark, a zero\u200bwidth and a nul\x00",
    "tab\tand\u00a0nbsp",
)
