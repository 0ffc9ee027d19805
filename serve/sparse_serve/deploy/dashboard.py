"""The dashboard of a deployment, for Grafana: what its server, its models and its gateway count."""

import json
from dataclasses import dataclass
from typing import Any

from sparse_serve.deploy.deployment import Deployment

_RANGE = "[$__rate_interval]"
_PODS = 'namespace=~"$namespace", job=~"$job"'
_SERVED = f'{_PODS}, model=~"$model"'
_GATEWAY = f'{_PODS}, proxy=~"http|grpc"'
_INFERENCE = f'{_PODS}, proxy=~".*_inference"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """A graph over time: a title, a unit as Grafana names it, and expressions of PromQL by their legends."""

    title: str
    unit: str
    series: dict[str, str]
    description: str = ""


def waiting(selector: str, window: str) -> str:
    """Return, in PromQL, how many requests wait within Triton in the mean of a window such as `[1m]`.

    They do so in queues, and long ones for a thread of a server-side tokenizer, if there is one. What is
    waited in a second is how many wait. Triton's own count of pending requests knows nothing of those that
    wait within a backend.
    """
    return (
        f"rate(nv_inference_queue_duration_us{{{selector}}}{window}) / 1e6 "
        f'or rate(sparse_serve_stage_seconds_total{{{selector}, stage="wait"}}{window})'
    )


def _mean_us(stage: str) -> str:
    """Return the mean microseconds of a stage of a request."""
    done = f"sum by (model) (rate(nv_inference_request_success{{{_SERVED}}}{_RANGE}))"
    return f"sum by (model) (rate(nv_inference_{stage}_duration_us{{{_SERVED}}}{_RANGE})) / {done}"


def _mean_measure(name: str) -> str:
    """Return the mean over texts of a measure, by layer."""
    texts = f"sum by (model) (rate(sparse_serve_texts_total{{{_SERVED}}}{_RANGE}))"
    measured = f"sum by (model, layer) (rate(sparse_serve_{name}_total{{{_SERVED}}}{_RANGE}))"
    return f"{measured} / on (model) group_left {texts}"


PANELS = (
    Panel(
        "Requests",
        "reqps",
        {
            "{{model}} answered": f"sum by (model) (rate(nv_inference_request_success{{{_SERVED}}}{_RANGE}))",
            "{{model}} failed": f"sum by (model) (rate(nv_inference_request_failure{{{_SERVED}}}{_RANGE}))",
        },
    ),
    Panel(
        "Latency by stage, mean",
        "µs",
        {
            f"{{{{model}}}} {title}": _mean_us(stage)
            for title, stage in (
                ("queue", "queue"),
                ("input", "compute_input"),
                ("compute", "compute_infer"),
                ("output", "compute_output"),
                ("in all", "request"),
            )
        },
        "In Triton; what requests wait in the gateway is beside it.",
    ),
    Panel(
        "Requests that wait",
        "short",
        {
            "gateway {{proxy}}": f"sum by (proxy) (haproxy_backend_current_queue{{{_INFERENCE}}})",
            "Triton {{model}}": f"sum by (model) ({waiting(_SERVED, _RANGE)})",
        },
        "In Triton the mean: a request counts when it is answered.",
    ),
    Panel(
        "Wait in the gateway, mean of the last 1024 requests",
        "s",
        {"{{proxy}}": f"max by (proxy) (haproxy_backend_queue_time_average_seconds{{{_INFERENCE}}})"},
    ),
    Panel(
        "Refused by the gateway",
        "reqps",
        {
            "{{proxy}} refused": (
                f"sum by (proxy) (rate(haproxy_frontend_requests_denied_total{{{_GATEWAY}}}{_RANGE}))"
            ),
            "{{proxy}} waited in vain, or too long": (
                "sum by (proxy) (rate(haproxy_backend_http_responses_total"
                f'{{{_INFERENCE}, code="5xx"}}{_RANGE}))'
            ),
        },
        "Refused: too large, too many, or not to be asked for.",
    ),
    Panel(
        "Server as the gateway finds it",
        "bool_yes_no",
        {"{{instance}} answers": f"min by (instance) (haproxy_backend_active_servers{{{_PODS}}})"},
    ),
    Panel(
        "Texts and tokens, a second",
        "short",
        {
            f"{{{{model}}}} {title}": f"sum by (model) (rate(sparse_serve_{name}_total{{{_SERVED}}}{_RANGE}))"
            for title, name in (("texts", "texts"), ("of them cut", "truncated"), ("tokens", "tokens"))
        },
        "Of entries with a server-side tokenizer; the onnxruntime backend of Triton's images counts none.",
    ),
    Panel(
        "ρ: share of attention weights that are zero, by layer",
        "percentunit",
        {"{{model}} layer {{layer}}": _mean_measure("rho")},
        "Of entries with a server-side tokenizer that were exported with --metrics.",
    ),
    Panel(
        "Batch, mean",
        "short",
        {
            "{{model}}": (
                f"sum by (model) (rate(nv_inference_count{{{_SERVED}}}{_RANGE}))"
                f" / sum by (model) (rate(nv_inference_exec_count{{{_SERVED}}}{_RANGE}))"
            )
        },
        "Texts that are computed together.",
    ),
    Panel(
        "Memory of the machine",
        "bytes",
        {
            "{{instance}} used": f"max by (instance) (nv_cpu_memory_used_bytes{{{_PODS}}})",
            "{{instance}} of": f"max by (instance) (nv_cpu_memory_total_bytes{{{_PODS}}})",
        },
    ),
)


def dashboard(deployment: Deployment) -> str:
    """Return a deployment's dashboard as Grafana imports it; what it shows, and from where, can be chosen."""
    board = {
        "title": f"sparse-serve: {deployment.entry.name}",
        "uid": deployment.name,
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _choice("namespace", "label_values(nv_inference_request_success, namespace)"),
                _choice("job", "label_values(nv_inference_request_success, job)", deployment.name),
                _choice("model", f"label_values(nv_inference_request_success{{{_PODS}}}, model)"),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(board, ensure_ascii=False, indent=2) + "\n"


def _choice(name: str, query: str, chosen: str | None = None) -> dict[str, Any]:
    """Return a variable that has the values a query finds: at first one of them, or all."""
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": [chosen or "All"], "value": [chosen or "$__all"]},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    width, height = 12, 8
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": number % 2 * width, "y": number // 2 * height, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for index, (legend, expression) in enumerate(panel.series.items())
        ],
    }
