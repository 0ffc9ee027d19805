"""The command `deploy`: an entry behind a gateway, as files for what runs containers."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from sparse_serve import __version__
from sparse_serve.cli.options import DEFAULT_REPOSITORY, ModelRepository, Verbose, given, read_size
from sparse_serve.deploy.cluster import Cluster
from sparse_serve.deploy.compose import Publication, compose_files
from sparse_serve.deploy.deployment import (
    DEFAULT_STARTUP_TIMEOUT,
    Deployment,
    require_certificate,
)
from sparse_serve.deploy.files import write_files
from sparse_serve.deploy.gateway import GATEWAY_IMAGE
from sparse_serve.deploy.kserve import kserve_files, require_storage_uri
from sparse_serve.deploy.kubernetes import ModelVolume, Route, kubernetes_files
from sparse_serve.deploy.limits import (
    DEFAULT_MAX_BODY,
    DEFAULT_QUEUE_TIMEOUT,
    DEFAULT_REQUEST_TIMEOUT,
    Limits,
    full_batches,
)
from sparse_serve.deploy.resources import needed_resources
from sparse_serve.errors import OptionError
from sparse_serve.repository.entries import Entry, read_entry, repository_path
from sparse_serve.repository.writing import validate_name
from sparse_serve.triton.container import DEFAULT_IMAGE, require_readable
from sparse_serve.triton.preflight import ipv4_address, servable_models

# A gRPC message says its length in four bytes.
_MOST_BODY = 1 << 31
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?"
_NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_SECRET = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"

_MACHINE, _CLUSTER = "On one machine", "On a cluster"


Target = Literal["compose", "kubernetes", "kserve"]
_ON_CLUSTERS: tuple[Target, ...] = ("kubernetes", "kserve")
# Options that not every target has.
_TARGETS: Mapping[str, tuple[Target, ...]] = {
    "host": ("compose",),
    "http_port": ("compose",),
    "grpc_port": ("compose",),
    "grafana_port": ("compose",),
    "tls_cert": ("compose",),
    "tls_secret": ("kubernetes",),
    "model_volume": ("kubernetes",),
    "gateway": ("kubernetes",),
    "hostname": ("kubernetes",),
    "storage_uri": ("kserve",),
    "min_replicas": _ON_CLUSTERS,
    "max_replicas": _ON_CLUSTERS,
    "client_namespace": _ON_CLUSTERS,
    "monitoring_namespace": _ON_CLUSTERS,
}
_STARTED_BY: Mapping[Target, str] = {
    "compose": "docker compose --project-directory {} up --detach --wait",
    "kubernetes": "kubectl apply --kustomize {}",
    "kserve": "kubectl apply --kustomize {}",
}


def deploy(  # noqa: PLR0913  one parameter per option
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model: an entry's name.")],
    *,
    target: Annotated[Target, typer.Option(help="What runs the containers.")],
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir",
            envvar="SPARSE_SERVE_DEPLOY_OUTPUT_DIR",
            help="Folder of the files: new, empty, or as deploy left it.",
        ),
    ],
    model_repository: ModelRepository = DEFAULT_REPOSITORY,
    image: Annotated[
        str | None,
        typer.Option(
            help="Image of docker/, on a cluster with a tag or a digest.",
            show_default=f"{DEFAULT_IMAGE}, on a cluster {DEFAULT_IMAGE}:{__version__}",
        ),
    ] = None,
    gateway_image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image of HAProxy, on a cluster with a tag or a digest.")
    ] = GATEWAY_IMAGE,
    report: Annotated[
        Path | None,
        typer.Option(help="report.json of profile: memory as measured.", show_default="estimated from files"),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            envvar="SPARSE_SERVE_DEPLOY_GPUS",
            min=0,
            max=64,
            help="NVIDIA GPUs of each server.",
            show_default="1 for an entry that computes on one",
        ),
    ] = None,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="Most bytes of a request; k, m or g behind a number.")
    ] = f"{DEFAULT_MAX_BODY >> 20}m",
    max_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Inferences at the same time.", show_default="instances × max_batch_size"),
    ] = None,
    max_pending_requests: Annotated[
        int | None,
        typer.Option(min=0, help="Inferences that wait; more are refused.", show_default="--max-requests"),
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds for an answer.")
    ] = DEFAULT_REQUEST_TIMEOUT,
    queue_timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds that an inference may wait.")
    ] = DEFAULT_QUEUE_TIMEOUT,
    startup_timeout: Annotated[
        int, typer.Option(min=10, max=86400, help="Seconds to load the model.")
    ] = DEFAULT_STARTUP_TIMEOUT,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            envvar="SPARSE_SERVE_DEPLOY_HOST",
            help="Address that the gateway is published on.",
            rich_help_panel=_MACHINE,
        ),
    ] = "127.0.0.1",
    http_port: Annotated[
        int,
        typer.Option(
            "--http-port",
            envvar="SPARSE_SERVE_DEPLOY_HTTP_PORT",
            min=1,
            max=65535,
            help="Of HTTP, on --host.",
            rich_help_panel=_MACHINE,
        ),
    ] = 8000,
    grpc_port: Annotated[
        int,
        typer.Option(
            "--grpc-port",
            envvar="SPARSE_SERVE_DEPLOY_GRPC_PORT",
            min=1,
            max=65535,
            help="Of gRPC, on --host.",
            rich_help_panel=_MACHINE,
        ),
    ] = 8001,
    grafana_port: Annotated[
        int,
        typer.Option(min=1, max=65535, help="Of the dashboard, on loopback.", rich_help_panel=_MACHINE),
    ] = 3000,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="PEM file with certificate and key: TLS for HTTP and gRPC.", rich_help_panel=_MACHINE
        ),
    ] = None,
    model_volume: Annotated[
        str | None,
        typer.Option(
            metavar="VOLUME",
            help="kubernetes: what has the entry's folders, pvc:CLAIM, pvc:CLAIM/FOLDER or image:REFERENCE.",
            show_default="pvc:NAME-models",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    storage_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="kserve: the folder that has the entry's folders and no others.",
            show_default="pvc://NAME-models",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    tls_secret: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            help="kubernetes: of the type kubernetes.io/tls, for HTTP and gRPC; without --gateway.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(
            metavar="GATEWAY",
            help="kubernetes: NAME or NAMESPACE/NAME of a Gateway, for a route from --hostname.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    hostname: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="kubernetes: of the route from --gateway.", rich_help_panel=_CLUSTER
        ),
    ] = None,
    min_replicas: Annotated[
        int, typer.Option(min=1, max=1000, help="Fewest servers.", rich_help_panel=_CLUSTER)
    ] = 2,
    max_replicas: Annotated[
        int, typer.Option(min=1, max=1000, help="Most servers.", rich_help_panel=_CLUSTER)
    ] = 8,
    client_namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Whose pods may ask; may be repeated.",
            show_default="the deployment's own",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    monitoring_namespace: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Where Prometheus is.", rich_help_panel=_CLUSTER)
    ] = "monitoring",
    force: Annotated[
        bool,
        typer.Option(
            "--force", envvar="SPARSE_SERVE_DEPLOY_FORCE", help="Write over files that deploy did not write."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="SPARSE_SERVE_JSON", help="Files and limits as JSON.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Write what runs an entry behind a gateway, on one machine or on a cluster.

    With compose: Triton, HAProxy, Prometheus and Grafana. With kubernetes: pods of Triton and HAProxy, what
    scales and guards them, and what the Prometheus operator needs; with kserve the same as a ServingRuntime
    and an InferenceService.

    The gateway refuses at once what the entry cannot take: requests that are too large, and more of them than
    it computes and lets wait. Limits hold for HTTP and gRPC each and for every server; they come from the
    entry's configuration.
    """
    _refuse_options_of_others(context, target)
    entry = read_entry(repository_path(model_repository) / validate_name(name))
    # A link to an entry, which no server takes, has a name of its own.
    servable_models(entry.path.parent, [name, *entry.models])
    body = read_size("max-body", max_body, _MOST_BODY)
    limits = _limits(entry, body, max_requests, max_pending_requests, request_timeout, queue_timeout)
    deployment = Deployment(
        entry=entry,
        limits=limits,
        image=_image("image", image or _default_image(target), target),
        resources=needed_resources(entry, limits, report, gpus),
        gateway_image=_image("gateway-image", gateway_image, target),
        startup_timeout=startup_timeout,
    )
    if target == "compose":
        require_readable(entry.folders, entry.path.parent)
        publication = _publication(host, (http_port, grpc_port, grafana_port), tls_cert)
        plan = _Plan(compose_files(deployment, publication))
    else:
        cluster = _cluster((min_replicas, max_replicas), client_namespace, monitoring_namespace)
        if target == "kubernetes":
            cluster, route = _with_tls(cluster, tls_secret), _route(gateway, hostname, tls_secret)
            plan = _on_kubernetes(deployment, cluster, model_volume, route)
        else:
            plan = _on_kserve(deployment, cluster, storage_uri)
    written = write_files(output_dir, plan.files, force=force)
    _tell([*(f"wrote {path}" for path in written), *(f"warning: {each}" for each in plan.warnings)])
    started_by = _STARTED_BY[target].format(shlex.quote(str(output_dir)))
    print(_as_json(written, deployment) if as_json else started_by)


@dataclass(frozen=True)
class _Plan:
    """What is written for a target: files by path, and what is to be said of them."""

    files: Mapping[str, str]
    warnings: Sequence[str] = ()


def _on_kubernetes(
    deployment: Deployment, cluster: Cluster, model_volume: str | None, route: Route | None
) -> _Plan:
    volume = _volume(model_volume or f"pvc:{deployment.name}-models")
    warnings = [] if route is None else _warnings_of_ingress(cluster, f"the Gateway {route}")
    images = [deployment.image, deployment.gateway_image, *([volume.image] if volume.image else [])]
    files = kubernetes_files(deployment, cluster, volume, route)
    return _Plan(files, [*warnings, *_warnings_of_tags(images)])


def _on_kserve(deployment: Deployment, cluster: Cluster, storage_uri: str | None) -> _Plan:
    uri = require_storage_uri(storage_uri or f"pvc://{deployment.name}-models")
    images = [deployment.image, deployment.gateway_image]
    warnings = [*_warnings_of_ingress(cluster, "KServe"), *_warnings_of_tags(images)]
    return _Plan(kserve_files(deployment, cluster, uri), warnings)


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _as_json(written: Sequence[Path], deployment: Deployment) -> str:
    told = {"limits": asdict(deployment.limits), "resources": asdict(deployment.resources)}
    return json.dumps({"files": list(map(str, written)), **told}, indent=2)


def _limits(
    entry: Entry,
    max_body: int,
    max_requests: int | None,
    max_pending_requests: int | None,
    request_timeout: float,
    queue_timeout: float,
) -> Limits:
    requests = full_batches(entry) if max_requests is None else max_requests
    return Limits(
        max_body=max_body,
        max_requests=requests,
        max_pending_requests=requests if max_pending_requests is None else max_pending_requests,
        request_timeout=request_timeout,
        queue_timeout=queue_timeout,
    )


def _refuse_options_of_others(context: typer.Context, target: Target) -> None:
    """Refuse them on the command line; in the environment they are for the targets that have them."""
    for name in given(context, [name for name, targets in _TARGETS.items() if target not in targets]):
        option, targets = name.replace("_", "-"), " and ".join(_TARGETS[name])
        raise OptionError(f"--{option} is not for --target {target}: it is for {targets}")


def _default_image(target: Target) -> str:
    return DEFAULT_IMAGE if target == "compose" else f"{DEFAULT_IMAGE}:{__version__}"


def _image(option: str, image: str, target: Target) -> str:
    """Return the image that an option says, on a cluster one with a tag or a digest."""
    if not re.fullmatch(_IMAGE, image):
        raise OptionError(f"--{option} '{image}' is no name of an image: give one such as {DEFAULT_IMAGE}")
    tag = image.rpartition("/")[2].partition(":")[2]
    if target != "compose" and tag in ("", "latest"):
        raise OptionError(
            f"--{option} '{image}' may be another one tomorrow, and differ from node to node: give a tag, "
            f"such as {__version__}, or the digest, @sha256:…"
        )
    return image


def _volume(text: str) -> ModelVolume:
    """Return what `--model-volume` says; an image has a tag or a digest."""
    volume = ModelVolume.parse(text)
    if volume.image is not None:
        _image("model-volume", volume.image, "kubernetes")
    return volume


def _warnings_of_ingress(cluster: Cluster, ingress: str) -> list[str]:
    """Say who may ask where requests come from pods that are mostly in another namespace."""
    if cluster.client_namespaces:
        return []
    return [
        f"networkpolicy.yaml lets pods of the deployment's own namespace ask, and no others: where {ingress} "
        "has its proxies in another, give that by --client-namespace, or they cannot reach it"
    ]


def _warnings_of_tags(images: Sequence[str]) -> list[str]:
    movable = [each for each in images if "@" not in each]
    if not movable:
        return []
    return [f"{' and '.join(movable)} may be another image tomorrow: give the digest, @sha256:…"]


def _publication(host: str, ports: tuple[int, int, int], tls_cert: Path | None) -> Publication:
    http, grpc, grafana = ports
    if len(set(ports)) < len(ports):
        raise OptionError(
            f"--http-port {http}, --grpc-port {grpc} and --grafana-port {grafana} are not three ports: give "
            "three"
        )
    return Publication(
        host=ipv4_address(host),
        http_port=http,
        grpc_port=grpc,
        grafana_port=grafana,
        certificate=None if tls_cert is None else require_certificate(tls_cert),
    )


def _cluster(
    replicas: tuple[int, int], client_namespaces: Sequence[str] | None, monitoring_namespace: str
) -> Cluster:
    fewest, most = replicas
    if fewest > most:
        raise OptionError(f"--min-replicas {fewest} is above --max-replicas {most}: give no more")
    return Cluster(
        min_replicas=fewest,
        max_replicas=most,
        client_namespaces=[_name("client-namespace", _NAMESPACE, each) for each in client_namespaces or ()],
        monitoring_namespace=_name("monitoring-namespace", _NAMESPACE, monitoring_namespace),
    )


def _with_tls(cluster: Cluster, secret: str | None) -> Cluster:
    return cluster if secret is None else replace(cluster, tls_secret=_name("tls-secret", _SECRET, secret))


def _route(gateway: str | None, hostname: str | None, tls_secret: str | None) -> Route | None:
    if (gateway is None) != (hostname is None):
        raise OptionError("--gateway and --hostname are one route: give both")
    if gateway is None or hostname is None:
        return None
    if tls_secret is not None:
        raise OptionError(
            f"--tls-secret {tls_secret} and --gateway {gateway} exclude each other, as a Gateway asks pods "
            "without TLS: give --gateway alone, and the certificate to the Gateway's listener"
        )
    return Route.parse(gateway, hostname)


def _name(option: str, pattern: str, name: str) -> str:
    if not re.fullmatch(pattern, name):
        raise OptionError(
            f"--{option} '{name}' is no name in Kubernetes: give lower case letters, digits and hyphens"
        )
    return name
