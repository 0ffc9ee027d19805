"""What somebody should be told of a deployment, as alerts of Prometheus."""

from dataclasses import dataclass

from sparse_serve.deploy.deployment import Deployment
from sparse_serve.repository.entries import Entry

_REFUSED_SHARE = 0.05


@dataclass(frozen=True)
class Alert:
    """An alert: its name, the PromQL that is true then, how many minutes it must be, and what it says."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str


def alerts(deployment: Deployment) -> list[Alert]:
    """Return the alerts of a deployment; they go by what its server and its gateway count."""
    name = deployment.name
    job = f'job="{name}"'
    inference = f'{job}, proxy=~".*_inference"'
    gateway = f'{job}, proxy=~"http|grpc"'
    refused = (
        f"sum by (job) (rate(haproxy_frontend_requests_denied_total{{{gateway}}}[5m]))\n"
        f'+ sum by (job) (rate(haproxy_backend_http_responses_total{{{inference}, code="5xx"}}[5m]))'
    )
    # Of the kubelet's probes none is counted: the gateway answers them itself.
    asked = (
        f"sum by (job) (rate(haproxy_frontend_requests_denied_total{{{gateway}}}[5m]))\n"
        f"+ sum by (job) (rate(haproxy_backend_http_requests_total{{{inference}}}[5m]))"
    )
    return [
        Alert(
            "SparseServeDown",
            f"max by (job) (haproxy_backend_active_servers{{{inference}}}) == 0\n"
            f"or absent(haproxy_backend_active_servers{{{inference}}})",
            2,
            "critical",
            f"No server of {name} answers, or no gateway tells of one.",
        ),
        Alert(
            "SparseServeRefuses",
            f"(\n{refused}\n) / (\n{asked}\n) > {_REFUSED_SHARE}",
            5,
            "warning",
            f"{name} refuses more than {_REFUSED_SHARE:.0%} of its requests, or lets them wait in vain: the "
            "dashboard tells overload from requests that are too large.",
        ),
        Alert(
            "SparseServeFaults",
            f"sum by (job, model) (rate({_faults(deployment.entry, job)}[5m])) > 0",
            5,
            "warning",
            "Texts to {{ $labels.model }} are refused for faults of the server, which its log or the answers "
            "name.",
        ),
    ]


def _faults(entry: Entry, job: str) -> str:
    """Return, in PromQL, what counts the texts that the server fails on by its own fault.

    The onnxruntime backend of Triton's images counts none. There Triton counts them: a graph that takes text
    fails for no text. One of token ids, which may stand beside it, also fails for a client's.
    """
    if entry.takes_text:
        return f'nv_inference_request_failure{{{job}, model="{entry.name}", reason="BACKEND"}}'
    return f'sparse_serve_refused_total{{{job}, reason="fault"}}'
