"""The target `compose`: Triton, the gateway and Prometheus on one machine with Docker Compose."""

from dataclasses import dataclass
from pathlib import Path

from sparse_serve.deploy.alerts import alerts
from sparse_serve.deploy.dashboard import dashboard
from sparse_serve.deploy.deployment import Deployment
from sparse_serve.deploy.files import render
from sparse_serve.deploy.gateway import Gateway, gateway_files
from sparse_serve.deploy.limits import health_request

PROMETHEUS_IMAGE = "prom/prometheus:v3.13.5"
# Of later versions Prometheus is a plugin, which is fetched at the start.
GRAFANA_IMAGE = "grafana/grafana:12.4.10"

_CERTIFICATE = "/run/secrets/tls_certificate"


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Where a machine is to be reached.

    Attributes:
        host: address that both protocols are published on.
        certificate: PEM file with certificate and key; None for no TLS.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    grafana_port: int = 3000
    certificate: Path | None = None


def compose_files(deployment: Deployment, publication: Publication) -> dict[str, str]:
    """Return the files of a folder that `docker compose up` starts from, by path."""
    entry, limits = deployment.entry, deployment.limits
    gateway = Gateway(
        models=tuple(entry.models),
        health_request=health_request(entry),
        limits=limits,
        certificate=_CERTIFICATE if publication.certificate else None,
    )
    compose = render(
        "compose.yaml.j2",
        deployment=deployment,
        publication=publication,
        prometheus_image=PROMETHEUS_IMAGE,
        grafana_image=GRAFANA_IMAGE,
        health_timeout=limits.health_timeout,
    )
    return {
        "compose.yaml": compose,
        "prometheus.yml": render("prometheus.yml.j2", deployment=deployment),
        "alerts.yml": render("alerts.yml.j2", deployment=deployment, alerts=alerts(deployment)),
        "grafana/provisioning/datasources/prometheus.yaml": render("grafana/datasource.yaml.j2"),
        "grafana/provisioning/dashboards/files.yaml": render("grafana/provider.yaml.j2"),
        "grafana/dashboards/dashboard.json": dashboard(deployment),
        **{f"gateway/{name}": text for name, text in gateway_files(gateway).items()},
    }
