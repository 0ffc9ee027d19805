"""The trade: who is dominated, what a budget picks, and what fits a memory limit."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sample_report import MIB, SHAPE, SSAF, estimated_anew, measurement, report_of

from sparse_serve.profiling.capacity import _greatest
from sparse_serve.profiling.subjects import GraphShape
from sparse_serve.profiling.theory import expected, live_bytes, runs_of
from sparse_serve.report.concluded import TradePoint
from sparse_serve.report.document import Report
from sparse_serve.report.figures import trade_figure
from sparse_serve.report.measured import Quality, Variant
from sparse_serve.report.page import to_html
from sparse_serve.report.trade import Budget, pick, trade_points

REPOSITORY = Path("model_repository")


def report(
    models: Mapping[str, tuple[float, int, float | None]],
    metric: str = "accuracy",
    rows: int = 1000,
    variants: Sequence[Variant] = ("model", "control"),
) -> Report:
    """Models with these latencies in ms, peaks above idle in MiB and qualities, None where not known.

    Measured again they are the same, so that any difference is more than the noise.
    """
    measured = [
        measurement(variant, model=name, p50=p50, peak=peak * MIB)
        for name, (p50, peak, _) in models.items()
        for variant in variants
    ]
    quality = [
        Quality(model=name, variant="model", file="x", rows=rows, metric=metric, metrics={metric: found})
        for name, (_, _, found) in models.items()
        if found is not None
    ]
    return report_of(measured, quality=quality)


def dominated(found: Report) -> dict[str, tuple[str, ...]]:
    return {point.model: point.dominated_by for point in found.trade}


def test_who_is_worse_in_all_is_dominated() -> None:
    found = report(
        {"good": (20, 40, 0.9), "fast": (10, 40, 0.8), "poor": (20, 50, 0.7), "alike": (20, 40, 0.9)}
    )
    assert dominated(found) == {"good": (), "fast": (), "poor": ("good", "fast", "alike"), "alike": ()}
    figure = trade_figure(found, "latency_ms") or ""
    assert "poor: 20.0 ms, accuracy 0.7000; dominated by good, fast, alike" in figure


def test_where_the_noise_is_unknown_a_model_is_dominated_by_better_quality_alone() -> None:
    """And by no worse latency and memory: without a control nobody knows how far a model lies from itself."""
    models = {"good": (20, 40, 0.9), "fast": (19.9, 40, 0.9), "poor": (20, 40, 0.7), "slow": (30, 40, 0.8)}
    assert dominated(report(models, variants=("model",))) == {
        "good": (),
        "fast": (),
        "poor": ("good", "fast"),
        "slow": ("good", "fast"),
    }


def test_noise_that_is_unknown_of_a_third_model_is_no_matter() -> None:
    measured = [
        measurement(variant, model=model, p50=p50)
        for model, p50 in (("good", 20), ("fast", 10), ("third", 15))
        for variant in ("model", "control")
        if (model, variant) != ("third", "control")
    ]
    found = report_of(measured, quality=[judged(name, "x") for name in ("good", "fast", "third")])
    assert dominated(found) == {"good": ("fast",), "fast": (), "third": ()}


def test_a_model_that_failed_at_the_longest_length_is_neither_dominated_nor_picked() -> None:
    """At a shorter one it is faster than those that were measured at the longest."""
    measured = [
        measurement(variant, length, model=model, p50=length / 10)
        for model in ("whole", "other", "failed")
        for length in (64, 128)
        for variant in ("model", "control")
        if (model, length) != ("failed", 128)
    ]
    found = report_of(measured, quality=[judged(name, "x") for name in ("whole", "other", "failed")])
    assert dominated(found) == {"whole": (), "other": ()}
    assert {point.length for point in found.trade} == {128}
    points = trade_points(measured, found.served, found.quality, (1, None), found.inputs)
    assert [point.model for point in points] == ["whole", "other"]


def test_without_a_second_model_there_is_no_trade() -> None:
    assert report({"good": (20, 40, 0.9)}).trade == ()


def test_what_is_not_known_is_not_taken_for_equal() -> None:
    """Without quality nobody knows what a saving costs; memory that is unknown is not less."""
    assert report({"good": (20, 40, None), "fast": (10, 40, None)}).trade == ()
    found = report({"good": (20, 40, 0.9), "fast": (10, 30, 0.9), "unknown": (5, 20, None)})
    assert dominated(found) == {"good": ("fast",), "fast": ()}
    variants: tuple[Variant, ...] = ("model", "control")
    good = [measurement(variant, model="good") for variant in variants]
    bare = [
        measurement(variant, model="bare", p50=5).model_copy(update={"memory_bytes": None})
        for variant in variants
    ]
    found = report_of([*good, *bare], quality=[judged("good", "x"), judged("bare", "x")])
    assert dominated(found) == {"good": (), "bare": ()}


def test_with_a_tokenizer_in_the_server_the_point_is_of_both() -> None:
    """What is deployed is `NAME`, whose tokenizer takes time and memory beside `NAME_model`."""
    measured = [measurement(p50=10), measurement(variant="text", p50=14, peak=90 * MIB)]
    served = SSAF.model_copy(update={"takes_text": False})
    asked = report_of(measured).inputs
    (point,) = trade_points(measured, [served], (), (1, None), asked)
    assert point.latency_ms == 14
    assert point.rho == pytest.approx(0.925)
    memory = measured[1].memory_bytes
    assert memory is not None
    assert point.total_memory == memory.total.value
    (alone,) = trade_points(measured[1:], [served], (), (1, None), asked)
    assert (alone.latency_ms, alone.rho) == (14, None)
    (of_graph,) = trade_points(measured, [SSAF], (), (1, None), asked)
    assert of_graph.latency_ms == 10
    assert (
        pick((), [SSAF], Budget(latency_ms=1), REPOSITORY).reason
        == "no model was measured at the longest length"
    )


def judged(model: str, file: str) -> Quality:
    return Quality(
        model=model, variant="model", file=file, rows=100, metric="accuracy", metrics={"accuracy": 0.9}
    )


def test_models_of_different_tasks_or_rows_are_not_held_against_each_other() -> None:
    models = {"good": (20, 40, 0.9), "fast": (10, 30, 0.9)}
    found = report(models)
    other = found.served[1].model_copy(update={"task": "regression"})
    served = (found.served[0], other)
    assert estimated_anew(found).trade == found.trade
    assert estimated_anew(found.model_copy(update={"served": served})).trade == ()
    measured = [measurement(model=name) for name in models]
    assert report_of(measured, quality=[judged("good", "x"), judged("fast", "y")]).trade == ()

    chosen = pick(found.trade, served, Budget(latency_ms=30), REPOSITORY)
    assert (chosen.model, chosen.export) == (None, None)
    assert "models of different tasks do not stand in for each other" in chosen.reason


@pytest.mark.parametrize(
    ("metric", "one", "other", "rows", "is_told"),
    [
        ("accuracy", 0.88, 0.87, 100, False),
        ("accuracy", 0.88, 0.80, 100, False),
        ("accuracy", 0.88, 0.70, 100, True),
        ("accuracy", 0.88, 0.87, 10_000, True),
        ("f1", 0.88, 0.87, 100, False),
        ("pearson", 0.9, 0.85, 100, False),
        ("pearson", 0.9, 0.8, 100, True),
        ("pearson", 1.0, 0.8, 100, True),
        ("spearman", 0.9, 0.1, 3, False),
        ("matthews", -0.1, -0.2, 100, False),
    ],
)
def test_a_row_of_a_hundred_does_not_decide_which_model_is_better(
    metric: str, one: float, other: float, rows: int, is_told: bool
) -> None:
    """Of models that cost the same; one that is cheaper dominates no model that was right more often."""
    found = report({"one": (20, 40, one), "other": (20, 40, other)}, metric, rows)
    assert dominated(found) == {"one": (), "other": ("one",) if is_told else ()}
    cheap = report({"one": (20, 40, one), "other": (10, 30, other)}, metric, rows)
    assert dominated(cheap) == {"one": (), "other": ()}


@pytest.mark.parametrize("with_quality", [True, False])
def test_the_pick_is_the_best_of_an_exhaustive_grid(with_quality: bool) -> None:
    points = [
        TradePoint(
            model=f"m{number}",
            dtype="fp32",
            lambd=None,
            rho=None,
            length=128,
            latency_ms=latency,
            total_memory=memory,
            texts_per_second=1000 / latency,
            metric="f1" if with_quality else None,
            quality=quality if with_quality else None,
            dominated_by=(),
        )
        for number, (latency, memory, quality) in enumerate(
            product((10.0, 20.0, 30.0), (100, 200, 300), (0.7, 0.9, 0.8))
        )
    ]
    served = [SSAF.model_copy(update={"model": point.model}) for point in points]
    for memory, latency, throughput in product((None, 99, 150, 300), (None, 15.0, 30.0), (None, 40.0)):
        found = pick(points, served, Budget(memory, latency, throughput), REPOSITORY)
        within = [
            point
            for point in points
            if point.total_memory is not None
            and point.total_memory <= (memory or 1000)
            and point.latency_ms <= (latency or 1000)
            and point.texts_per_second >= (throughput or 0)
        ]
        assert (found.model is None) == (not within)
        if within:
            picked = next(point for point in points if point.model == found.model)
            assert picked in within
            assert (picked.quality or 0) == max(point.quality or 0 for point in within)
            if not with_quality:
                assert picked.latency_ms == min(point.latency_ms for point in within)
            assert found.serve == "sparse-serve serve model_repository"
            assert found.export == SSAF.command


def test_the_page_has_the_pick() -> None:
    found = report({"good": (20, 40, 0.9), "fast": (10, 40, 0.8)})
    chosen = pick(found.trade, found.served, Budget(latency_ms=15), REPOSITORY)
    html = to_html(found.model_copy(update={"pick": chosen}))
    assert "<b>fast</b>: the best accuracy, 0.8000, of 1 within the budgets, out of 2, at 128 tokens." in html
    assert SSAF.command in html


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 64), (8, 512)])
def test_the_greatest_that_fits_is_found_from_below(least: int, most: int) -> None:
    for limit in range(least - 1, most + 2):
        tried: list[int] = []

        def fits(number: int, limit: int = limit, tried: list[int] = tried) -> bool:
            tried.append(number)
            return number <= limit

        found = _greatest(least, most, fits)
        assert found == (None if limit < least else min(limit, most))
        assert len(tried) < 25
        assert max(tried) <= max(2 * max(limit, least), least + 1)


@pytest.mark.parametrize(
    ("variant", "tokens", "hidden", "inner", "scores"),
    [
        ("padded_eager", 2 * 512, 7, 3, (2 * 12 + 1) * 2 * 512**2 * 4),
        ("padded_fused", 2 * 512, 9, 2, 12 * 2 * 512**2 * 4),
        ("packed_dense", 512 + 375, 7, 2, 0),
        ("model", 512 + 375, 7, 2, 0),
    ],
)
def test_theory_counts_what_lives_at_once(
    variant: Any, tokens: int, hidden: int, inner: int, scores: int
) -> None:
    """Eager attention forms the scores twice, with a mask, the fused one once, packed kernels never.

    Rows of 512, 375, 239 and 102 tokens are computed two at a time. Counted are the allocations of the demo's
    model in ONNX Runtime; of packed ones less the activation's own, as BiasGelu of ours takes none.
    """
    found = expected(measurement(variant, 512, batch=4), SHAPE, 9, runs_of([512, 375, 239, 102]))
    assert found is not None
    assert found.scores == scores
    assert found.activations == (hidden * 384 + inner * 1536) * tokens * 4
    assert (found.length, found.batch, found.weights) == (512, 4, 9)


def test_theory_is_of_the_run_that_takes_most() -> None:
    """Of three rows of 256 tokens together, and one of 1,024 alone, the long one forms more scores."""
    together, alone = (
        live_bytes("padded_eager", SHAPE, runs_of(rows)) for rows in ([256, 256, 256, 1024], [1024])
    )
    assert together == alone


def test_a_backend_divides_a_request_by_what_it_takes_for_lengths() -> None:
    rows = [512, 375, 239, 102]
    assert runs_of(rows) == [[512, 375], [239, 102]]
    assert runs_of(rows, [725, 530, 340, 140]) == [[512], [375, 239, 102]]
    assert runs_of(rows, [100, 100, 100, 100]) == [[512, 375], [239, 102]]


def test_short_texts_peak_in_the_feed_forward_layers() -> None:
    assert live_bytes("padded_fused", GraphShape(2, 8, 64), [[4]]) == ((5 * 8 + 3 * 64) * 4 * 4, 0)


def test_without_a_shape_there_is_no_theory() -> None:
    shapes: Sequence[GraphShape] = [GraphShape(None, 384, 1536), GraphShape(12, None, None)]
    assert [expected(measurement(), shape, 9, [[128]]) for shape in shapes] == [None, None]
    assert expected(measurement("portable"), SHAPE, 9, [[128]]) is None
