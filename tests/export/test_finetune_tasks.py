"""Fine-tuning for spans and tags: what is asked of each token, and that what is learned is what is served."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification

import tiny_models
from sparse_export.attention.spec import AttentionSpec
from sparse_export.checkpoint import load_checkpoint, save_checkpoint
from sparse_export.encoders.spec import ModelSpec
from sparse_export.encoders.tokenizer import load_tokenizer
from sparse_export.tasks import head_of
from sparse_export.tasks.token_classification import tags_of_words
from sparse_export.tasks.trained import IGNORED, TrainedHead
from sparse_export.training import FinetuneOptions, finetune
from sparse_export.training.encoding import encode_texts
from sparse_serve.data import TextData, read_data
from sparse_serve.errors import DataError
from sparse_serve.tasks import QuestionAnswering, Task, TokenClassification
from sparse_serve.tasks.encoding import EncodedText
from tiny_training import weights

QA = FinetuneOptions(
    task="question_answering", epochs=2, batch_size=8, learning_rate=5e-3, stride=6, max_length=40, seed=1
)
TAGS = FinetuneOptions(task="token_classification", epochs=2, batch_size=8, learning_rate=5e-3, seed=1)
ATTENTIONS = {"sparsegen": -4.0, "softmax": None, "axis": None, "local2+global1": None, "axis+local1": -2.0}

pytestmark = pytest.mark.usefixtures("single_threaded")


def make_encoder(folder: Path, family: str = "bert") -> Path:
    folder.mkdir()
    model = tiny_models.make_model(AttentionSpec(), family)
    save_checkpoint(model, tiny_models.make_tokenizer(folder, family), folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contexts of up to 50 letters, of which a z is to be found."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("rows") / "questions.jsonl"
    rows = []
    for _ in range(48):
        letters = rng.choice([*"abcdefgh"], rng.integers(3, 50)).tolist()
        at = int(rng.integers(len(letters)))
        letters[at] = "z"
        row = {"question": "where", "context": " ".join(letters), "answer_start": 2 * at, "answer": "z"}
        rows.append(json.dumps(row))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words, of which zz begins a name that d ends, and y-z is a code that the tokenizer splits."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(60):
        for word in rng.choice(["a", "bc", "zz", "y-z"], rng.integers(1, 6)):
            tag = {"zz": "B-NAME", "y-z": "B-CODE"}.get(word, "O")
            lines.append(f"{word}\t{tag}")
            if tag == "B-NAME":
                lines.append("d\tI-NAME")
        lines.append("")
    path = tmp_path_factory.mktemp("rows") / "sentences.conll"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def head_and_texts(
    encoder: Path, data: TextData, task: Task, max_length: int = 40
) -> tuple[TrainedHead, list[EncodedText]]:
    head = head_of(task)
    assert isinstance(head, TrainedHead)
    return head, encode_texts(task, load_tokenizer(encoder), data, max_length)


def write_question(path: Path, context: str, start: int, answer: str) -> TextData:
    row = {"question": "a b", "context": context, "answer_start": start, "answer": answer}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return read_data(path, task="question_answering")


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("one two three", "two"),
        ("one two three", "one two three"),
        ("one\r\n two three", "two"),
        ("e\u0301t\u00e9 two", "two"),  # combining marks, which normalisation takes away
        ("\U0001f600 two", "two"),
        ("x two.", "two"),
        ("x two", "w"),  # a part of a token
    ],
)
def test_an_answer_is_the_tokens_that_hold_it(
    encoder: Path, tmp_path: Path, context: str, answer: str
) -> None:
    data = write_question(tmp_path / "a.jsonl", context, context.index(answer), answer)
    head, (text,) = head_and_texts(encoder, data, QuestionAnswering())
    ((target,),) = head.window_targets(data, [text])
    (window,) = text.windows
    start, end = (window.offsets[target[name]] for name in ("start_positions", "end_positions"))
    assert start[0] <= context.index(answer) < start[1]
    assert end[0] < context.index(answer) + len(answer) <= end[1]
    assert answer in context[start[0] : end[1]]
    assert window.sequence_ids[target["start_positions"]] == 1


def test_a_window_without_the_whole_answer_has_none(encoder: Path, tmp_path: Path) -> None:
    context = " ".join("abcdefghijklmnopqrstuvwxyz" * 3)
    data = write_question(tmp_path / "a.jsonl", context, 2 * 20, "u v w")
    head, (text,) = head_and_texts(encoder, data, QuestionAnswering(stride=10), 20)
    assert len(text.windows) > 4
    (targets,) = head.window_targets(data, [text])
    found = 0
    for window, target in zip(text.windows, targets, strict=True):
        first, last = target["start_positions"], target["end_positions"]
        inside = [
            offsets
            for offsets, sequence in zip(window.offsets, window.sequence_ids, strict=True)
            if sequence == 1
        ]
        has_all = inside[0][0] <= 40 and inside[-1][1] >= 45
        assert has_all == (first > 0)
        if has_all:
            found += 1
            assert context[window.offsets[first][0] : window.offsets[last][1]] == "u v w"
        else:
            assert (first, last) == (0, 0)  # [CLS]
    assert found > 1


def test_the_loss_of_spans_is_transformers_own(encoder: Path, questions: Path) -> None:
    """Of one row by itself: theirs lets padding take part, ours does not."""
    data = read_data(questions, task="question_answering")
    task = QuestionAnswering(stride=6)
    head, texts = head_and_texts(encoder, data, task)
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_pretrained(encoder, num_labels=2).eval()
    alone: list[float] = []
    windows: list[Mapping[str, Any]] = []
    for text, targets in zip(texts, head.window_targets(data, texts), strict=True):
        for window, target in zip(text.windows, targets, strict=True):
            windows.append({"input_ids": window.ids, "token_type_ids": window.type_ids, **target})
    collator = head.collator(load_tokenizer(encoder))
    with torch.no_grad():
        for row in windows[:9]:
            batch = collator([dict(row)])
            alone.append(model(**batch).loss.item())
        batch = collator([dict(row) for row in windows[:9]])
        outputs = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})
        answer = head.answer_padded(outputs, batch["attention_mask"])
        ours = head.loss(answer, batch).item()
    assert ours == pytest.approx(np.mean(alone), abs=1e-5)


def test_spans_are_learned_and_figures_are_what_is_served(
    encoder: Path, questions: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    record = finetune(encoder, questions, output, replace(QA, epochs=6), evaluation=questions)
    assert set(record.metrics) == {"f1", "exact_match"}
    assert record.metrics["exact_match"] > 0.3  # one of 25 letters
    model, tokenizer = load_checkpoint(output), load_tokenizer(output)
    task = cast(QuestionAnswering, ModelSpec.of(model.config).task)
    assert task == QuestionAnswering(stride=6)
    data = read_data(questions, task="question_answering")
    texts = encode_texts(task, tokenizer, data, 40)
    # Window by window, as a plain model would be asked.
    windows = [window for text in texts for window in text.windows]
    output_of = np.zeros((len(windows), max(map(len, windows)), 2), np.float32)
    with torch.no_grad():
        for row, window in enumerate(windows):
            answer = model(torch.tensor([window.ids]), token_type_ids=torch.tensor([window.type_ids]))
            logits = torch.stack([answer.start_logits[0], answer.end_logits[0]], -1)
            output_of[row, : len(window)] = logits.numpy()
    columns = task.answer(texts, output_of)
    right = [each.decode() == "z" for each in columns["answer"][:, 0]]
    assert np.mean(right) == record.metrics["exact_match"]


def test_questions_without_an_answer_are_recorded(encoder: Path, tmp_path: Path) -> None:
    """SQuAD 2.0, read as its file is."""
    paragraphs = [
        {
            "context": f"{'a b c ' * (number % 5)}z",
            "qas": [
                {
                    "id": f"{number}",
                    "question": "where z" if number % 2 else "nowhere",
                    "answers": [{"text": "z", "answer_start": 6 * (number % 5)}] if number % 2 else [],
                    "is_impossible": number % 2 == 0,
                }
            ],
        }
        for number in range(40)
    ]
    path = tmp_path / "squad.json"
    content = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    record = finetune(encoder, path, tmp_path / "out", replace(QA, epochs=6), evaluation=path)
    task = ModelSpec.of(load_checkpoint(tmp_path / "out").config).task
    assert task == QuestionAnswering(stride=6, no_answer=True)
    assert record.metrics["exact_match"] > 0.8  # the question tells


def test_an_empty_context_is_a_row_like_any_other(encoder: Path, tmp_path: Path) -> None:
    """Also where all rows that are held out, or encoded together, have none."""
    path = tmp_path / "a.jsonl"
    rows: list[dict[str, Any]] = [{"question": "q", "context": "", "answer_start": None, "answer": None}] * 2
    rows += [{"question": "", "context": f"{n} a", "answer_start": 0, "answer": f"{n}"} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for seed in range(4):
        options = replace(QA, seed=seed, epochs=1)
        assert finetune(encoder, path, tmp_path / f"{seed}", options, test=path).test is not None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]), encoding="utf-8")
    assert finetune(encoder, path, tmp_path / "out", QA, evaluation=path).metrics == {
        "f1": 1.0,
        "exact_match": 1.0,
    }


def pieces(encoder: Path, text: EncodedText) -> list[str]:
    tokens: list[str] = load_tokenizer(encoder).convert_ids_to_tokens(text.windows[0].ids)
    return tokens


def write_sentence(path: Path, *words: tuple[str, str]) -> TextData:
    path.write_text("".join(f"{word}\t{tag}\n" for word, tag in words), encoding="utf-8")
    return read_data(path, task="token_classification")


def test_a_tag_is_carried_by_the_first_piece_of_each_word(encoder: Path, tmp_path: Path) -> None:
    data = write_sentence(tmp_path / "a.conll", ("abc", "B-X"), ("d-e", "B-X"), ("f-g", "I-Y"), ("h.", "O"))
    task = TokenClassification(("O", "B-X", "I-X", "I-Y"))
    head, (text,) = head_and_texts(encoder, data, task)
    ((target,),) = head.window_targets(data, [text])
    told = [
        (piece, "-" if label == IGNORED else task.labels[label])
        for piece, label in zip(pieces(encoder, text), target["labels"], strict=True)
    ]
    # The tokenizer's pieces are letters; d-e, f-g and h. are split into words, which go on with their entity.
    assert told == [
        ("[CLS]", "-"),
        *(("a", "B-X"), ("##b", "-"), ("##c", "-")),
        *(("d", "B-X"), ("-", "I-X"), ("e", "I-X")),
        *(("f", "I-Y"), ("-", "I-Y"), ("g", "I-Y")),
        *(("h", "O"), (".", "O")),
        ("[SEP]", "-"),
    ]


@pytest.mark.parametrize(
    ("tag", "count", "names"),
    [
        ("O", 3, ["O", "O", "O"]),
        ("B-X", 1, ["B-X"]),
        ("B-X", 3, ["B-X", "I-X", "I-X"]),
        ("I-X", 2, ["I-X", "I-X"]),
        ("S-X", 3, ["B-X", "I-X", "E-X"]),
        ("E-X", 2, ["I-X", "E-X"]),
        ("X", 2, ["X", "X"]),
        ("B", 2, ["B", "I"]),
    ],
)
def test_an_entity_goes_on_to_the_last_word_of_its_token(tag: str, count: int, names: Sequence[str]) -> None:
    assert tags_of_words(tag, count) == names


def test_words_without_a_tag_of_their_own_are_not_asked(encoder: Path, tmp_path: Path) -> None:
    """The model knows no I-X, and B-X once more would be another entity; what is cut off is not asked."""
    data = write_sentence(tmp_path / "a.conll", ("d-e", "B-X"), ("abc", "O"), ("f", "O"))
    head, (text,) = head_and_texts(encoder, data, TokenClassification(("O", "B-X")), 7)
    ((target,),) = head.window_targets(data, [text])
    assert target["labels"] == [IGNORED, 1, IGNORED, IGNORED, 0, IGNORED, IGNORED]


def test_a_word_of_several_tokens_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415

    tokenizer = Tokenizer(models.WordLevel({"a b": 0, "[UNK]": 1}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("|", "removed")
    data = write_sentence(tmp_path / "a.conll", ("a", "B-X"), ("b", "O"))
    task = TokenClassification(("O", "B-X"))
    head = head_of(task)
    assert isinstance(head, TrainedHead)
    texts = task.encode(tokenizer, [row.text for row in data.rows], None, 20)
    with pytest.raises(DataError, match="line 1: the tokenizer reads 'a b' as one word, but it is 2 tokens"):
        head.window_targets(data, texts)


def test_tags_are_learned_and_judged_as_entities(sentences: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    encoder = make_encoder(tmp_path / "encoder", "distilbert")  # learns fastest
    record = finetune(
        encoder,
        sentences,
        output,
        replace(TAGS, epochs=12, learning_rate=2e-3),
        evaluation=sentences,
        test=sentences,
    )
    assert record.metrics["f1"] > 0.6
    # The tokenizer splits y-z, whose entity goes on by a tag that the file does not have.
    assert list(record.labels) == ["O", "B-CODE", "B-NAME", "I-CODE", "I-NAME"]
    answers = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
    data = read_data(sentences, task="token_classification")
    for row, answer in zip(data.rows, answers, strict=True):
        for entity in json.loads(answer["entities"]):
            assert row.text[entity["start"] : entity["end"]] == entity["text"]
    assert record.test is not None
    assert record.test.metrics == record.metrics
    stock = AutoModelForTokenClassification.from_pretrained(output)
    assert stock.config.id2label == dict(enumerate(record.labels))


def test_the_loss_of_tags_is_a_mean_over_words(encoder: Path, sentences: Path, tmp_path: Path) -> None:
    """However many parts a batch is computed in, and whatever their numbers of words."""
    options = replace(TAGS, dropout=0.0, epochs=1)
    losses = []
    for name, parts in (("whole", 1), ("parts", 4)):
        record = finetune(
            encoder,
            sentences,
            tmp_path / name,
            replace(options, gradient_accumulation_steps=parts),
            evaluation=sentences,
        )
        losses.append((record.best.train_loss, record.best.eval_loss))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    model, tokenizer = load_checkpoint(tmp_path / "whole"), load_tokenizer(tmp_path / "whole")
    data = read_data(sentences, task="token_classification")
    task = ModelSpec.of(model.config).task
    head, texts = head_and_texts(encoder, data, task)
    each: list[Tensor] = []
    with torch.no_grad():
        for text, (target,) in zip(texts, head.window_targets(data, texts), strict=True):
            logits = model(**tokenizer(text.text, return_tensors="pt")).logits[0]
            each.append(F.cross_entropy(logits, torch.tensor(target["labels"]), reduction="none"))
            each[-1] = each[-1][torch.tensor(target["labels"]) != IGNORED]
    assert losses[0][1] == pytest.approx(torch.cat(each).mean().item(), abs=1e-5)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if family in ("bert", "roberta") else pytest.mark.slow)
        for family in tiny_models.FAMILIES
    ],
)
def test_every_family_trains_for_both(family: str, questions: Path, sentences: Path, tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "encoder", family)
    for number, (options, rows) in enumerate(((QA, questions), (TAGS, sentences))):
        names = list(ATTENTIONS)
        name = names[(tiny_models.FAMILIES.index(family) + number) % len(names)]
        attention = AttentionSpec.parse(name, ATTENTIONS[name])
        output = tmp_path / options.task
        record = finetune(
            encoder, rows, output, replace(options, attention=attention), evaluation=rows, test=rows
        )
        assert record.test is not None
        assert record.test.metrics == record.metrics
        spec = ModelSpec.of(load_checkpoint(output).config)
        assert (spec.attention, spec.task.type) == (attention, options.task)


def test_a_resumed_run_of_spans_ends_as_if_never_interrupted(
    encoder: Path, questions: Path, tmp_path: Path
) -> None:
    import sparse_export.training.trainer as trainer_module  # noqa: PLC0415
    from sparse_export.training.callbacks import Steering  # noqa: PLC0415

    options = replace(QA, attention=AttentionSpec.parse("axis", None), epochs=4)
    whole = finetune(encoder, questions, tmp_path / "whole", options)

    class Interrupting(Steering):
        def on_step_begin(self, *args: Any, **_: Any) -> None:
            if args[1].epoch is not None and args[1].epoch >= 3:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "Steering", Interrupting)
        with pytest.raises(KeyboardInterrupt):
            finetune(encoder, questions, tmp_path / "out", options)
    resumed = finetune(encoder, questions, tmp_path / "out", options, resume=True)
    assert replace(resumed, seconds=0) == replace(whole, seconds=0)
    mine, theirs = weights(tmp_path / "out"), weights(tmp_path / "whole")
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize(
    ("options", "name", "content", "message"),
    [
        (
            QA,
            "a.jsonl",
            '{"question": "q", "context": "one", "answer_start": 2, "answer": "two"}',
            "a.jsonl, line 1: answer 'two' at 2 to 5 is outside of its context of 3 characters",
        ),
        (
            QA,
            "a.jsonl",
            '{"question": "q", "context": "one two", "answer_start": 0, "answer": "two"}',
            "a.jsonl, line 1: the answer is 'two', but at 0 the context has 'one'",
        ),
        (TAGS, "a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', "line 1: 2 tokens but 1 tags"),
        (TAGS, "a.conll", "a\tX-PER\n", "tag 'X-PER' of token 1 ('a') has the prefix X-; accepted are "),
        (TAGS, "a.conll", "a\tO\nb\tO\n", "tags no word with anything but O"),
    ],
)
def test_bad_rows_are_one_error(
    encoder: Path, tmp_path: Path, options: FinetuneOptions, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content + "\n", encoding="utf-8")
    with pytest.raises(DataError) as refused:
        finetune(encoder, path, tmp_path / "out", options, evaluation=path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
