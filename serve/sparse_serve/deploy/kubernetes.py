"""The target `kubernetes`: a Deployment of pods with Triton and the gateway, and what belongs around it."""

import re
from dataclasses import dataclass

from sparse_serve.deploy.cluster import Cluster, Manifests, cluster_files
from sparse_serve.deploy.deployment import Deployment
from sparse_serve.errors import OptionError

_CLAIM = r"pvc:(?P<claim>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)(?P<folder>(/[A-Za-z0-9._-]+)*)/?"
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_LONGEST_HOST = 253
_IMAGE = r"image:(?P<image>[A-Za-z0-9][^\s]*)"


@dataclass(frozen=True, kw_only=True)
class ModelVolume:
    """Where pods have the entry's folders from: a claim or an image, and the folder in it, "" or "…/"."""

    claim: str | None = None
    image: str | None = None
    folder: str = ""

    @classmethod
    def parse(cls, text: str) -> "ModelVolume":
        """Return what `--model-volume` says.

        Raises:
            OptionError: it is neither of the two forms.
        """
        if (found := re.fullmatch(_CLAIM, text)) and ".." not in text.split("/"):
            folder = found["folder"].strip("/")
            return cls(claim=found["claim"], folder=f"{folder}/" if folder else "")
        if found := re.fullmatch(_IMAGE, text):
            return cls(image=found["image"])
        raise OptionError(
            f"--model-volume '{text}' is no volume: give pvc:CLAIM, pvc:CLAIM/FOLDER, or image:REFERENCE for "
            "an image that has the entry's folders in its root"
        )


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way in from outside: a Gateway of the Gateway API, its namespace if another, and a host of it."""

    gateway: str
    namespace: str | None
    hostname: str

    @classmethod
    def parse(cls, gateway: str, hostname: str) -> "Route":
        """Return what `--gateway` and `--hostname` say.

        Raises:
            OptionError: one is malformed.
        """
        found = re.fullmatch(rf"((?P<namespace>{_LABEL})/)?(?P<name>{_HOST})", gateway)
        if not found:
            raise OptionError(f"--gateway '{gateway}' is no name of a Gateway: give [NAMESPACE/]NAME")
        if not re.fullmatch(_HOST, hostname) or len(hostname) > _LONGEST_HOST:
            raise OptionError(
                f"--hostname '{hostname}' is no name of a host: give one in lower case, without a port"
            )
        return cls(gateway=found["name"], namespace=found["namespace"], hostname=hostname)

    def __str__(self) -> str:
        return self.gateway if self.namespace is None else f"{self.namespace}/{self.gateway}"


def kubernetes_files(
    deployment: Deployment, cluster: Cluster, volume: ModelVolume, route: Route | None = None
) -> dict[str, str]:
    """Return the files of a folder that `kubectl apply --kustomize` takes, by path."""
    objects = {
        "deployment.yaml": "kubernetes/deployment.yaml.j2",
        "service.yaml": "kubernetes/service.yaml.j2",
    }
    if route is not None:
        objects["routes.yaml"] = "kubernetes/routes.yaml.j2"
    manifests = Manifests(
        objects=objects, workload=deployment.name, values={"volume": volume, "route": route}
    )
    return cluster_files(deployment, cluster, manifests)
