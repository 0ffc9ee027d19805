"""What the targets `kubernetes` and `kserve` have in common: pods, what scales and guards them, monitoring.

A pod has two containers, Triton and the gateway of `gateway.py`, so that the limits hold for each server by
itself, however many there are, and nothing reaches Triton but by its gateway: it listens on loopback.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparse_serve.deploy.alerts import alerts
from sparse_serve.deploy.dashboard import dashboard, waiting
from sparse_serve.deploy.deployment import Deployment
from sparse_serve.deploy.files import render
from sparse_serve.deploy.gateway import Gateway, gateway_files
from sparse_serve.deploy.limits import health_request
from sparse_serve.deploy.resources import SHARED_MEMORY

PORTS = {"http": 8000, "grpc": 8001, "server_metrics": 8002, "gateway_metrics": 8404}
"""What a pod listens on; services have the same numbers."""

QUEUE_METRIC = "sparse_serve_queue_time_seconds"

_SERVER_HTTP, _SERVER_GRPC = 18000, 18001
_CERTIFICATE_FOLDER = "/run/secrets/tls"
# Until whoever sends connections knows that a pod ends.
_ENDPOINT_DELAY = 5
# Of the longest that a request may take, what an inference of a probe may: to start a server again that is
# only loaded helps nobody, and a hung one is sent nothing meanwhile.
_PROBE_PATIENCE = 2
# Beyond that: Python's own start, on cores that all compute.
_PROBE_SECONDS = 5
# Triton's own end, and the kubelet's.
_GRACE_SECONDS = 15
# Of the longest that a request may wait, what it waits on average before another replica is due.
_QUEUE_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What surrounds the pods of a deployment.

    Attributes:
        client_namespaces: those whose pods may ask; none for the deployment's own.
        tls_secret: a secret of the type kubernetes.io/tls for both protocols; None for no TLS.
    """

    min_replicas: int = 2
    max_replicas: int = 8
    client_namespaces: Sequence[str] = field(default_factory=tuple)
    monitoring_namespace: str = "monitoring"
    tls_secret: str | None = None


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """The objects of a target, as templates, and what these have beside what all have.

    Attributes:
        objects: templates by file name.
        workload: the name of the Deployment that the pods are of.
        egress: whether the pods need the network themselves.
        configurations: of kustomize, by file name.
    """

    objects: Mapping[str, str]
    workload: str
    egress: bool = False
    configurations: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


def cluster_files(deployment: Deployment, cluster: Cluster, manifests: Manifests) -> dict[str, str]:
    """Return the files of a folder that `kubectl apply --kustomize` takes, by path."""
    entry, limits = deployment.entry, deployment.limits
    gateway = Gateway(
        models=tuple(entry.models),
        health_request=health_request(entry),
        limits=limits,
        http=f":{PORTS['http']}",
        grpc=f":{PORTS['grpc']}",
        metrics=f":{PORTS['gateway_metrics']}",
        http_server=f"127.0.0.1:{_SERVER_HTTP}",
        grpc_server=f"127.0.0.1:{_SERVER_GRPC}",
        certificate=f"{_CERTIFICATE_FOLDER}/tls.pem" if cluster.tls_secret else None,
    )
    configuration = {f"gateway/{name}": text for name, text in gateway_files(gateway).items()}
    server_delay = _ENDPOINT_DELAY + math.ceil(limits.queue_timeout) + 1
    values: dict[str, Any] = {
        "deployment": deployment,
        "limits": limits,
        "cluster": cluster,
        "workload": manifests.workload,
        "egress": manifests.egress,
        "ports": PORTS,
        "server_http": _SERVER_HTTP,
        "server_grpc": _SERVER_GRPC,
        "certificate_folder": _CERTIFICATE_FOLDER,
        "shared_memory": SHARED_MEMORY,
        "probe_seconds": _PROBE_PATIENCE * limits.health_timeout,
        "probe_timeout": math.ceil(_PROBE_PATIENCE * limits.health_timeout) + _PROBE_SECONDS,
        "gateway_delay": _ENDPOINT_DELAY,
        "server_delay": server_delay,
        "grace_period": server_delay + deployment.drain_timeout + _GRACE_SECONDS,
        "route_timeout": math.ceil(limits.queue_timeout + limits.request_timeout) + 1,
        "queue_metric": QUEUE_METRIC,
        "queue_record": f"pod:{QUEUE_METRIC}:rate1m",
        "queue_target_ms": max(1, round(_QUEUE_SHARE * limits.queue_timeout * 1000)),
        "queue_time": _queue_time(deployment),
        "alerts": alerts(deployment),
        **manifests.values,
    }
    objects = dict(manifests.objects) | {
        f"{kind}.yaml": f"cluster/{kind}.yaml.j2"
        for kind in ("horizontalpodautoscaler", "poddisruptionbudget", "networkpolicy")
    }
    lists = {
        "resources": list(objects),
        "gateway_files": list(configuration),
        "configurations": list(manifests.configurations),
    }
    monitoring = {
        "monitoring/kustomization.yaml": "cluster/monitoring.yaml.j2",
        "monitoring/podmonitor.yaml": "cluster/podmonitor.yaml.j2",
        "monitoring/prometheusrule.yaml": "cluster/prometheusrule.yaml.j2",
        "monitoring/prometheus-adapter.yaml": "cluster/prometheus-adapter.yaml.j2",
    }
    templates = objects | dict(manifests.configurations) | monitoring
    return {
        "kustomization.yaml": render("cluster/kustomization.yaml.j2", **values, **lists),
        **{path: render(template, **values) for path, template in templates.items()},
        "monitoring/dashboard.json": dashboard(deployment),
        **configuration,
    }


def _queue_time(deployment: Deployment) -> str:
    """Return, in PromQL, the mean seconds that requests of each pod wait, in the gateway and in Triton."""
    job = f'job="{deployment.name}"'
    by_pod = "sum by (namespace, pod)"
    return (
        "(\n"
        f"  {by_pod} ({waiting(job, '[1m]')})\n"
        f'  + {by_pod} (avg_over_time(haproxy_backend_current_queue{{{job}, proxy=~".*_inference"}}[1m]))\n'
        ")\n"
        "/ clamp_min(\n"
        f"  {by_pod} (rate(nv_inference_request_success"
        f'{{{job}, model="{deployment.entry.name}"}}[1m])),\n'
        "  1\n"
        ")"
    )
