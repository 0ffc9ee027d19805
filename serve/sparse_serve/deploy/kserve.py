"""The target `kserve`: a ServingRuntime with Triton and the gateway, and an InferenceService on it."""

import re

from sparse_serve.deploy.cluster import Cluster, Manifests, cluster_files
from sparse_serve.deploy.deployment import Deployment
from sparse_serve.errors import OptionError

# What is mounted, and not downloaded by a container of the pod itself.
_MOUNTED = ("pvc://",)


def require_storage_uri(text: str) -> str:
    """Return what `--storage-uri` says.

    Raises:
        OptionError: it is no URI.
    """
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s\"'\\]+", text):
        raise OptionError(
            f"--storage-uri '{text}' is no URI: give what KServe takes, such as pvc://CLAIM/FOLDER or "
            "s3://BUCKET/FOLDER"
        )
    return text


def kserve_files(deployment: Deployment, cluster: Cluster, storage_uri: str) -> dict[str, str]:
    """Return the files of a folder that `kubectl apply --kustomize` takes, by path."""
    manifests = Manifests(
        objects={
            "servingruntime.yaml": "kserve/servingruntime.yaml.j2",
            "inferenceservice.yaml": "kserve/inferenceservice.yaml.j2",
        },
        # As KServe calls the Deployment of a predictor.
        workload=f"{deployment.name}-predictor",
        egress=not storage_uri.startswith(_MOUNTED),
        configurations={"name-reference.yaml": "kserve/name-reference.yaml.j2"},
        values={"storage_uri": storage_uri},
    )
    return cluster_files(deployment, cluster, manifests)
