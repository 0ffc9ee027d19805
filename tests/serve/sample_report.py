"""A report as `profile` makes it, with chosen numbers."""

from collections.abc import Iterable
from datetime import UTC, datetime

from sparse_serve.environment import Cpu, OpLibrary
from sparse_serve.profiling.report import (
    VARIANTS,
    Absent,
    Axes,
    Breakdown,
    Environment,
    Growth,
    Inputs,
    Latency,
    Measurement,
    Memory,
    Quality,
    Report,
    Served,
    Settings,
    Sparsity,
    Variant,
)
from sparse_serve.profiling.savings import growth, savings, splits

HEADS = 12


def measurement(
    variant: Variant = "model",
    length: int = 128,
    *,
    p50: float = 10.0,
    peak: int = 2**20,
    model: str = "reviews",
    batch: int = 1,
    concurrency: int = 1,
    spread: float = 0.02,
) -> Measurement:
    return Measurement(
        model=model,
        variant=variant,
        served_as=f"{model}_model",
        length=length,
        batch=batch,
        concurrency=concurrency,
        tokens_per_request=batch * length,
        requests=300,
        windows=3,
        stable=spread <= 0.1,
        spread=spread,
        texts_per_second=batch * concurrency * 1000 / p50,
        tokens_per_second=batch * concurrency * length * 1000 / p50,
        latency_ms=Latency(mean=p50, p50=p50, p90=1.1 * p50, p95=1.2 * p50, p99=1.5 * p50),
        client_cores=0.1,
        breakdown_us=Breakdown(
            client_send=50,
            network=400,
            server_queue=30,
            server_compute_input=20,
            server_compute_infer=1000 * p50 - 600,
            server_compute_output=60,
            client_receive=40,
        ),
        memory_bytes=Memory(idle=200 * 2**20, peak_above_idle=peak, rounds=(peak, peak, peak)),
        sparsity=Sparsity(rho=(0.9, 0.95), keys_kept=(12.8, 6.4)) if variant == "model" else None,
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
    measurements: Iterable[Measurement], absent: Iterable[Absent] = (), served: Served = SSAF
) -> Report:
    measured = tuple(measurements)
    lengths = tuple(sorted({each.length for each in measured}))
    return Report(
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
            concurrencies=tuple(sorted({each.concurrency for each in measured})),
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
        served=(served,),
        inputs=tuple(
            Inputs(
                model="reviews",
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
            for length in lengths
        ),
        measurements=measured,
        absent=tuple(absent),
        quality=(
            Quality(
                model=measured[0].model,
                variant=measured[0].variant,
                file="dev.tsv",
                rows=100,
                metric="accuracy",
                metrics={"accuracy": 0.9, "f1": 0.8},
            ),
        ),
        savings=tuple(savings(measured)),
        splits=tuple(splits(measured)),
        growth=eager_growth(measured),
    )


def full_report() -> Report:
    """Every variant at four lengths; eager memory is quadratic, the rest linear."""
    factors: dict[Variant, float] = {
        "model": 0.9,
        "packed_dense": 1.0,
        "padded_fused": 1.2,
        "padded_eager": 2.0,
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
