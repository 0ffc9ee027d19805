"""The target `kubernetes`: a Deployment of pods with Triton and the gateway, and what belongs around it."""

import re
from dataclasses import dataclass

from sparse_serve.deploy.cluster import Cluster, Manifests, cluster_files
from sparse_serve.deploy.deployment import Deployment
from sparse_serve.errors import OptionError

_CLAIM = r"pvc:(?P<claim>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)(?P<folder>(/[A-Za-z0-9._-]+)*)/?"
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


def kubernetes_files(deployment: Deployment, cluster: Cluster, volume: ModelVolume) -> dict[str, str]:
    """Return the files of a folder that `kubectl apply --kustomize` takes, by path."""
    manifests = Manifests(
        objects={
            "deployment.yaml": "kubernetes/deployment.yaml.j2",
            "service.yaml": "kubernetes/service.yaml.j2",
        },
        workload=deployment.name,
        values={"volume": volume},
    )
    return cluster_files(deployment, cluster, manifests)
