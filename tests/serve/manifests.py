"""Schemas that written manifests are held against.

Objects of Kubernetes itself: those that it publishes, from the package kubernetes-validate. Custom resources
and Compose files: what deploy uses of them, written down here from the projects' API references, with nothing
else allowed; containers and the like in them are Kubernetes' own. Where `SPARSE_SERVE_SCHEMAS` names a folder
with CustomResourceDefinitions as the projects release them (*.yaml) and compose-spec.json, manifests
are held against those too.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from referencing import Registry
from referencing.jsonschema import DRAFT202012

# The newest that the package knows, and the oldest that what is written is for.
NEWEST, OLDEST = "1.37", "1.30"
# What the schemas below are of: KServe 0.20, Prometheus operator 0.93, Gateway API 1.3, kustomize 5.
_CORE = "io.k8s.api.core.v1."
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."

Schema = dict[str, Any]
Manifest = dict[str, Any]


def _of(definition: str) -> Schema:
    return {"$ref": f"_definitions.json#/$defs/{definition}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _exactly(*required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT: Schema = {"type": "string", "minLength": 1}
_TEXTS = _list(_TEXT)
_NUMBER: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}
_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))+$"}


def _object(api_version: str, kind: str, spec: Schema) -> Schema:
    return _exactly(
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=_of(_META + "ObjectMeta"),
        spec=spec,
    )


_CUSTOM = {
    "PodMonitor": _object(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        _exactly(
            "selector",
            jobLabel=_TEXT,
            selector=_of(_META + "LabelSelector"),
            podMetricsEndpoints=_list(_exactly(port=_TEXT, path=_TEXT, interval=_DURATION)),
        ),
    ),
    "PrometheusRule": _object(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        _exactly(
            groups=_list(
                _exactly(
                    "name",
                    name=_TEXT,
                    interval=_DURATION,
                    rules=_list(
                        _exactly(
                            "expr",
                            record=_TEXT,
                            alert=_TEXT,
                            expr=_TEXT,
                            labels=_map(_TEXT),
                            annotations=_map(_TEXT),
                            **{"for": _DURATION},
                        )
                    ),
                )
            )
        ),
    ),
    "ServingRuntime": _object(
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
        _exactly(
            "containers",
            supportedModelFormats=_list(
                _exactly("name", name=_TEXT, version=_TEXT, autoSelect=_FLAG, priority=_NUMBER)
            ),
            protocolVersions=_TEXTS,
            annotations=_map(_TEXT),
            labels=_map(_TEXT),
            containers=_list(_of(_CORE + "Container")),
            volumes=_list(_of(_CORE + "Volume")),
        ),
    ),
    "InferenceService": _object(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        _exactly(
            "predictor",
            predictor=_exactly(
                labels=_map(_TEXT),
                timeout=_NUMBER,
                automountServiceAccountToken=_FLAG,
                enableServiceLinks=_FLAG,
                terminationGracePeriodSeconds=_NUMBER,
                securityContext=_of(_CORE + "PodSecurityContext"),
                topologySpreadConstraints=_list(_of(_CORE + "TopologySpreadConstraint")),
                model=_exactly(
                    "modelFormat",
                    modelFormat=_exactly("name", name=_TEXT, version=_TEXT),
                    runtime=_TEXT,
                    protocolVersion={"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]},
                    storageUri=_TEXT,
                ),
            ),
        ),
    ),
    "HTTPRoute": _object(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        _exactly(
            parentRefs=_list(_exactly("name", name=_TEXT, namespace=_TEXT)),
            hostnames=_TEXTS,
            rules=_list(
                _exactly(
                    matches=_list(
                        _exactly(path=_exactly("type", "value", type={"const": "PathPrefix"}, value=_TEXT))
                    ),
                    timeouts=_exactly(request=_DURATION, backendRequest=_DURATION),
                    backendRefs=_list(_exactly("name", "port", name=_TEXT, port=_NUMBER)),
                )
            ),
        ),
    ),
    "Kustomization": _exactly(
        "apiVersion",
        "kind",
        apiVersion={"const": "kustomize.config.k8s.io/v1beta1"},
        kind={"const": "Kustomization"},
        resources=_TEXTS,
        configurations=_TEXTS,
        configMapGenerator=_list(
            _exactly(
                "name",
                name=_TEXT,
                files=_TEXTS,
                options=_exactly(disableNameSuffixHash=_FLAG, labels=_map(_TEXT)),
            )
        ),
    ),
}

_BIND = _exactly(
    "type", "source", "target", type={"const": "bind"}, source=_TEXT, target=_TEXT, read_only=_FLAG
)
_DEVICES = _list(
    _exactly("capabilities", driver=_TEXT, count={"type": ["integer", "string"]}, capabilities=_TEXTS)
)
_COMPOSE = _exactly(
    "services",
    name={"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
    services=_map(
        _exactly(
            "image",
            image=_TEXT,
            user=_TEXT,
            read_only=_FLAG,
            tmpfs=_TEXTS,
            shm_size=_TEXT,
            cap_drop=_TEXTS,
            security_opt=_TEXTS,
            environment=_map(_TEXT),
            healthcheck=_exactly(start_period=_DURATION, interval=_DURATION, timeout=_DURATION),
            volumes=_list({"anyOf": [_BIND, {"type": "string", "pattern": "^[a-z]+:/"}]}),
            networks=_TEXTS,
            secrets=_TEXTS,
            ports=_list({"type": "string", "pattern": r"^[0-9.]+:[0-9]+:[0-9]+$"}),
            depends_on={"anyOf": [_TEXTS, _map(_exactly(condition={"const": "service_healthy"}))]},
            deploy=_exactly(
                resources=_exactly(
                    limits=_exactly(memory={"type": "string", "pattern": "^[0-9]+b$"}),
                    reservations=_exactly(devices=_DEVICES),
                )
            ),
            stop_signal={"const": "SIGUSR1"},
            stop_grace_period=_DURATION,
            restart={"const": "unless-stopped"},
        )
    ),
    networks=_map(_exactly(internal=_FLAG)),
    volumes=_map(_exactly()),
    secrets=_map(_exactly("file", file=_TEXT)),
)


def require_valid(manifest: Manifest, *versions: str) -> None:
    """Hold an object of a cluster against its schema, of versions of Kubernetes where it is Kubernetes' own.

    Raises:
        ValidationError: it does not fit.
    """
    kind = str(manifest["kind"])
    if kind in _CUSTOM:
        jsonschema.Draft202012Validator(_CUSTOM[kind], registry=_registry()).validate(manifest)
    else:
        for version in versions:
            kubernetes_validate.validate(manifest, version, strict=True)
    if (published := _published().get(kind)) is not None:
        jsonschema.Draft7Validator(published).validate(manifest)


def require_valid_compose(content: Manifest) -> None:
    """Hold a Compose file against its schema.

    Raises:
        ValidationError: it does not fit.
    """
    jsonschema.Draft202012Validator(_COMPOSE).validate(content)
    if (published := _published().get("compose")) is not None:
        jsonschema.Draft7Validator(published).validate(content)


@cache
def _registry() -> "Registry[Any]":
    folder = files("kubernetes_validate") / "kubernetes-json-schema"
    name = "_definitions.json"
    text = (folder / f"v{NEWEST}.0-local-strict" / name).read_text(encoding="utf-8")
    empty: Registry[Any] = Registry()
    registry: Registry[Any] = empty.with_resource(name, DRAFT202012.create_resource(json.loads(text)))
    return registry


@cache
def _published() -> dict[str, Schema]:
    """Return the schemas in the folder that `SPARSE_SERVE_SCHEMAS` names, by kind."""
    folder = os.environ.get("SPARSE_SERVE_SCHEMAS")
    return {} if folder is None else dict(_schemas_in(Path(folder)))


def _schemas_in(folder: Path) -> Iterator[tuple[str, Schema]]:
    for path in sorted(folder.glob("*.yaml")):
        definition = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        (schema,) = (
            version["schema"]["openAPIV3Schema"]
            for version in definition["spec"]["versions"]
            if version["storage"]
        )
        yield definition["spec"]["names"]["kind"], _closed(schema)
    for path in folder.glob("compose-spec.json"):
        yield "compose", json.loads(path.read_bytes())


def _closed(schema: Any) -> Any:
    """Return a schema of a custom resource as the API server prunes by it: with no fields that it lacks."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    properties = closed.get("properties")
    if schema.get("type") == "object" and isinstance(properties, dict) and "metadata" not in properties:
        closed.setdefault("additionalProperties", False)
    return closed
