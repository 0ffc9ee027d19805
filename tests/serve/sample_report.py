"""A report as `profile` makes it, with chosen numbers."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from sparse_serve.environment import Cpu, OpLibrary
from sparse_serve.profiling.subjects import GraphShape
from sparse_serve.profiling.theory import expected, growth
from sparse_serve.report.concluded import Growth
from sparse_serve.report.document import Environment, Inputs, Report, Served, Settings
from sparse_serve.report.estimates import Estimate, estimate
from sparse_serve.report.measured import (
    VARIANTS,
    Absent,
    Axes,
    Breakdown,
    Cost,
    Failure,
    Latency,
    Measurement,
    Memory,
    ProcessMemory,
    Quality,
    Sparsity,
    Steady,
    Variant,
)
from sparse_serve.report.savings import limits, noise, savings, splits
from sparse_serve.report.trade import trade, trade_points

HEADS = 12
SHAPE = GraphShape(HEADS, 384, 1536)
MIB = 2**20
IDLE = 200 * MIB
# How far servers of one round lie from the mean: no variant's servers are alike.
JITTER = (-0.01, 0.0, 0.01)


def servers(value: float, jitter: Sequence[float] = JITTER) -> Estimate:
    return estimate([value * (1 + each) for each in jitter])


def measurement(
    variant: Variant = "model",
    length: int = 128,
    *,
    p50: float = 10.0,
    peak: int = MIB,
    model: str = "reviews",
    batch: int = 1,
    concurrency: int | None = 1,
    request_rate: float | None = None,
    spread: float = 0.02,
    jitter: Sequence[float] = JITTER,
) -> Measurement:
    in_flight = concurrency or 1
    rounds = tuple(range(1, len(jitter) + 1))
    texts_per_second = request_rate or batch * in_flight * 1000 / p50
    return Measurement(
        model=model,
        variant=variant,
        served_as=f"{model}_model",
        length=length,
        batch=batch,
        concurrency=concurrency,
        request_rate=request_rate,
        rounds=rounds,
        tokens_per_request=batch * length,
        requests=300,
        distinct_requests=4,
        windows=3,
        stable=spread <= 0.1,
        spread=spread,
        texts_per_second=servers(texts_per_second, jitter),
        tokens_per_second=texts_per_second * length,
        latency_ms=Latency(
            mean=servers(p50, jitter),
            p50=servers(p50, jitter),
            p90=servers(1.1 * p50, jitter),
            p95=servers(1.2 * p50, jitter),
            p99=servers(1.5 * p50, jitter),
        ),
        client_cores=0.1,
        late_share=None if request_rate is None else 0.0,
        breakdown_us=Breakdown(
            client_send=50,
            network=400,
            server_queue=30,
            server_compute_input=20,
            server_compute_infer=1000 * p50 - 600,
            server_compute_output=60,
            client_receive=40,
        ),
        memory_bytes=Memory(
            rounds=rounds,
            at_rest=servers(IDLE, [0.0] * len(jitter)),
            above_idle=servers(peak, jitter),
            total=estimate([IDLE + peak * (1 + each) for each in jitter]),
        )
        if request_rate is None
        else None,
        cost=Cost(core_seconds=2 * p50, mebibyte_seconds=200 * p50, joules=None),
        sparsity=Sparsity(rho=(0.9, 0.95), keys_kept=(12.8, 6.4)) if variant == "model" else None,
    )


def steady(variant: Variant = "model", model: str = "reviews") -> Steady:
    return Steady(
        model=model,
        variant=variant,
        rounds=(1, 2, 3),
        before=servers(180 * MIB),
        rss=servers(320 * MIB),
        pss=servers(300 * MIB),
        peak=servers(330 * MIB),
        cgroup_peak=servers(420 * MIB),
        gpu=None,
        processes=(
            ProcessMemory(name="tritonserver", pss=260 * MIB, rss=260 * MIB, peak=260 * MIB),
            ProcessMemory(name="triton_python_b", pss=40 * MIB, rss=60 * MIB, peak=70 * MIB),
        ),
    )


def eager_growth(measurements: Iterable[Measurement]) -> tuple[Growth, ...]:
    return tuple(growth(list(measurements), "reviews", HEADS))


SSAF = Served(
    model="reviews",
    version=1,
    layers=2,
    max_length=512,
    dtype="fp32",
    task="single_label_classification",
    normalizer="sparsegen",
    pattern=None,
    lambd=-4.0,
    takes_text=True,
    command="sparse-serve export checkpoints/reviews --name reviews",
    checkpoint=None,
)
AAA = SSAF.model_copy(update={"normalizer": "softmax", "pattern": "axis+local2", "lambd": None})


def with_axes(measured: Measurement) -> Measurement:
    """The measurement of a model of two layers in which 1 and 2 rows and 2 and 3 columns are on."""
    assert measured.sparsity is not None
    rows, columns = (1.0, 2.0), (2.0, 3.0)
    axes = Axes(
        rows_on=tuple(count / measured.length for count in rows),
        columns_on=tuple(count / measured.length for count in columns),
        rows_on_count=rows,
        columns_on_count=columns,
    )
    return measured.model_copy(update={"sparsity": measured.sparsity.model_copy(update={"axes": axes})})


def report_of(
    measurements: Iterable[Measurement],
    absent: Iterable[Absent] = (),
    served: Served = SSAF,
    *,
    failures: Iterable[Failure] = (),
    quality: Iterable[Quality] | None = None,
    partial: str | None = None,
) -> Report:
    measured = tuple(measurements)
    lengths = tuple(sorted({each.length for each in measured}))
    models = list(dict.fromkeys(each.model for each in measured))
    records = tuple(
        served if name == served.model else served.model_copy(update={"model": name}) for name in models
    )
    found = tuple(noise(measured))
    concurrencies = tuple(sorted({each.concurrency for each in measured if each.concurrency is not None}))
    rates = tuple(sorted({each.request_rate for each in measured if each.request_rate is not None}))
    qualities = tuple(
        quality
        if quality is not None
        else (
            Quality(
                model=measured[0].model,
                variant=measured[0].variant,
                file="dev.tsv",
                rows=100,
                metric="accuracy",
                metrics={"accuracy": 0.9, "f1": 0.8},
            ),
        )
    )
    lightest = (concurrencies[0], None) if concurrencies else (None, rates[0])
    inputs = tuple(
        Inputs(
            model=model,
            length=length,
            batch=1,
            source="built-in texts",
            requests=4,
            row_lengths=(length,),
            mean_length=length,
            tokens=length,
            padding_share=0,
            tasks={},
        )
        for model in models
        for length in lengths
    )
    points = trade_points(measured, records, qualities, lightest, inputs)
    return Report(
        partial=partial,
        environment=Environment(
            created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            cpu=Cpu(model="A processor", architecture="x86_64", cores=2, memory_bytes=8 * 2**30),
            gpus=None,
            kernel="Linux 6.1",
            transparent_huge_pages="madvise",
            triton="2.51.0 (release 24.10, bundled)",
            onnxruntime="1.31.1",
            op_library=OpLibrary(sha256="0" * 64, version=1, instruction_set="avx2"),
            python="3.11.7",
            package="0.1.0",
        ),
        settings=Settings(
            lengths=lengths,
            variants=VARIANTS,
            batch_size=measured[0].batch,
            concurrencies=concurrencies,
            request_rates=rates,
            request_distribution="poisson",
            rounds=len(measured[0].rounds),
            client_has_own_cores=False,
            measurement_interval_ms=1000,
            stability_percentage=10,
            percentile=None,
            max_trials=10,
            intra_op_threads=2,
            memory_arena=False,
            malloc_mmap_threshold_bytes=65536,
            memory="How memory was measured.",
            latency="How latency was measured.",
        ),
        served=records,
        inputs=inputs,
        measurements=measured,
        steady=tuple(steady(each.variant, each.model) for each in measured if each.length == lengths[-1]),
        expected=tuple(
            theory
            for each in measured
            if each.concurrency == 1
            and (theory := expected(each, SHAPE, 90 * MIB, [[each.length] * each.batch])) is not None
        ),
        capacity=(),
        absent=tuple(absent),
        failures=tuple(failures),
        quality=qualities,
        noise=found,
        savings=tuple(savings(measured, limits(found))),
        splits=tuple(splits(measured, records, limits(found))),
        growth=eager_growth(measured),
        trade=tuple(trade(points, records, qualities, found, lightest)),
        pick=None,
    )


def full_report() -> Report:
    """Every variant at four lengths; eager memory is quadratic, the rest linear."""
    factors: dict[Variant, float] = {
        "model": 0.9,
        "control": 0.903,
        "packed_dense": 1.0,
        "padded_fused": 1.2,
        "padded_eager": 2.0,
        "padded_sparse": 4.0,
        "portable": 9.0,
        "text": 1.0,
    }
    return report_of(
        measurement(
            variant,
            length,
            p50=factor * length / 8,
            peak=round(factor * 20_000 * length + (96 * length**2 if variant == "padded_eager" else 0)),
        )
        for variant, factor in factors.items()
        for length in (64, 128, 256, 512)
    )


def estimated_anew(report: Report) -> Report:
    """Return what the figures of a report's servers say by the estimates of today."""
    found = report.model_validate(_estimates_anew(report.model_dump()))
    measured, known_noise = found.measurements, tuple(noise(found.measurements))
    known = limits(known_noise)
    points = trade_points(measured, found.served, found.quality, found.lightest, found.inputs)
    return found.model_copy(
        update={
            "noise": known_noise,
            "savings": tuple(savings(measured, known)),
            "splits": tuple(splits(measured, found.served, known)),
            "trade": tuple(trade(points, found.served, found.quality, known_noise, found.lightest)),
        }
    )


def _estimates_anew(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_estimates_anew(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == Estimate.model_fields.keys():
        return estimate(value["servers"]).model_dump()
    return {name: _estimates_anew(each) for name, each in value.items()}
