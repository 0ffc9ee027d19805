"""The target `compose`: Triton, the gateway and Prometheus on one machine with Docker Compose."""

import re

from sparse_serve.deploy.deployment import Deployment
from sparse_serve.deploy.files import render
from sparse_serve.deploy.gateway import Gateway, gateway_files
from sparse_serve.deploy.limits import health_request

# The branch that the tests run; it is maintained until 2027.
GATEWAY_IMAGE = "haproxy:2.6"
PROMETHEUS_IMAGE = "prom/prometheus:v3.13.5"

_CERTIFICATE = "/run/secrets/tls_certificate"


def compose_files(deployment: Deployment) -> dict[str, str]:
    """Return the files of a folder that `docker compose up` starts from, by path."""
    entry, limits = deployment.entry, deployment.limits
    gateway = Gateway(
        models=tuple(entry.models),
        health_request=health_request(entry),
        limits=limits,
        certificate=_CERTIFICATE if deployment.certificate else None,
    )
    compose = render(
        "compose.yaml.j2",
        deployment=deployment,
        # What Compose takes for the name of a project.
        project="sparse-serve-" + re.sub("[^a-z0-9_-]", "-", entry.name.lower()),
        gateway_image=GATEWAY_IMAGE,
        prometheus_image=PROMETHEUS_IMAGE,
        health_timeout=limits.health_timeout,
    )
    return {
        "compose.yaml": compose,
        "prometheus.yml": render("prometheus.yml.j2"),
        **{f"gateway/{name}": text for name, text in gateway_files(gateway).items()},
    }
