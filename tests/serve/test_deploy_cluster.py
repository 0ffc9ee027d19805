"""The command `deploy` on clusters: manifests of Kubernetes and KServe, and what they start."""

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from haproxy import check_config, needs_haproxy
from manifests import NEWEST, OLDEST, Manifest, require_valid
from sample_report import SSAF, measurement, report_of
from tiny_entry import take_out_of_service

from command_line import outcome
from sparse_serve import __version__
from sparse_serve.cli import app
from sparse_serve.deploy.cluster import PORTS
from sparse_serve.deploy.deployment import Deployment
from sparse_serve.deploy.gateway import CONFIG, GATEWAY_IMAGE
from sparse_serve.deploy.limits import Limits
from sparse_serve.deploy.resources import Resources
from sparse_serve.report.measured import Variant
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.entries import read_entry
from sparse_serve.repository.writing import EntrySpec, write_entry

MakeSpec = Callable[..., EntrySpec]
Run = Callable[..., tuple[int, str, str]]

KUBECTL = shutil.which("kubectl")
TARGETS = ("kubernetes", "kserve")
# Names that are something else in YAML where they are not quoted.
READ_AS_OTHERS = ("true", "on", "null", "1e3", "123")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_entry(folder, make_spec(computing=Computing(instances=2, threads=3), max_batch_size=8))
    write_entry(folder, make_spec(name="4.Big_Names"))
    for name in READ_AS_OTHERS:
        write_entry(folder, make_spec(name=name))
    write_entry(folder, make_spec(name="text", takes_text=True))
    return folder


@pytest.fixture
def deploy(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Deploy an entry to `tmp_path / "out"`: status, stdout, stderr."""

    def run_deploy(target: str, *arguments: str, name: str = "tiny") -> tuple[int, str, str]:
        line = ["deploy", name, "--target", target, "--output-dir", str(tmp_path / "out")]
        return outcome(capsys, app, *line, "--model-repository", repository, *arguments)

    return run_deploy


def manifests(folder: Path) -> list[Manifest]:
    """The objects in a folder's files, kustomizations included."""
    found = [
        manifest
        for path in sorted(folder.rglob("*.yaml"))
        for manifest in yaml.safe_load_all(path.read_text())
    ]
    return [each for each in found if "kind" in each]


def of_kind(folder: Path, kind: str) -> Manifest:
    (found,) = (each for each in manifests(folder) if each["kind"] == kind)
    return found


def containers(folder: Path) -> dict[str, dict[str, Any]]:
    """A target's containers by name, that of Triton as `server`."""
    kinds = {each["kind"]: each for each in manifests(folder)}
    if "Deployment" in kinds:
        listed = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    else:
        listed = kinds["ServingRuntime"]["spec"]["containers"]
    return {each["name"].replace("kserve-container", "server"): each for each in listed}


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def test_entries_are_told_apart_by_the_names_of_their_deployments(repository: Path) -> None:
    tiny = Deployment(
        entry=read_entry(repository / "tiny"),
        limits=Limits(max_requests=1, max_pending_requests=1),
        image="a:1",
        resources=Resources(memory=1, memory_limit=1, cpu=None, gpus=0, basis=""),
    )
    long = "reviews-of-films-of-the-year-that-is-past"
    entries = ["reviews", "Reviews", "re-views", "re_views", "4", "entry-4", "x--", long, f"{long}-2"]
    names = {each: replace(tiny, entry=replace(tiny.entry, name=each)).name for each in entries}
    assert len(set(names.values())) == len(entries)
    for name in names.values():
        assert re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", name)
        assert len(name) <= 40
    assert [each for each in entries if names[each] == each] == ["reviews", "re-views", "entry-4"]


@pytest.mark.parametrize("name", ["tiny", "4.Big_Names"])
@pytest.mark.parametrize("target", TARGETS)
def test_manifests_fit_their_schemas(deploy: Run, tmp_path: Path, target: str, name: str) -> None:
    many = ["--gpus", "2", "--client-namespace", "a", "--client-namespace", "b", "--request-timeout", "0.5"]
    image = ["--tls-secret", "tls", "--model-volume", "image:registry:5000/models@sha256:" + "0" * 64]
    route = ["--gateway", "infra/public", "--hostname", "reviews.example.com"]
    own_options = {
        "kubernetes": [(image, [NEWEST]), (route, [NEWEST, OLDEST])],  # images are volumes in later versions
        "kserve": [(["--storage-uri", "s3://bucket/models"], [NEWEST, OLDEST])],
    }[target]
    for options, fitting in (([], [NEWEST, OLDEST]), (many, [NEWEST, OLDEST]), *own_options):
        status, _, errors = deploy(target, *options, name=name)
        assert status == 0, errors
        for manifest in manifests(tmp_path / "out"):
            require_valid(manifest, *fitting)
    found = {manifest["kind"] for manifest in manifests(tmp_path / "out")}
    own = {
        "kubernetes": {"Deployment", "Service", "HTTPRoute"},
        "kserve": {"ServingRuntime", "InferenceService"},
    }[target]
    around = {"HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy"}
    assert found == own | around | {"PodMonitor", "PrometheusRule", "Kustomization"}
    for path in (tmp_path / "out").rglob("*.yaml"):
        assert not re.search(r" \n|\n\n(?!\S)", path.read_text()), path


def shape(value: Any) -> Any:
    """What a value of YAML consists of: its keys, and the types of what is in it."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else type(value)


@pytest.mark.parametrize("target", ["compose", *TARGETS])
def test_a_name_is_a_string_whatever_it_is(deploy: Run, tmp_path: Path, target: str) -> None:
    route = ["--gateway", "infra/public", "--hostname", "reviews.example.com"]

    def written(name: str) -> dict[str, Any]:
        assert deploy(target, *(route if target == "kubernetes" else ()), name=name)[0] == 0
        return {
            str(path.relative_to(tmp_path)): list(yaml.safe_load_all(path.read_text()))
            for path in tmp_path.rglob("*.y*ml")
        }

    expected = shape(written("4.Big_Names"))
    for name in READ_AS_OTHERS:
        assert shape(written(name)) == expected


@pytest.mark.parametrize("target", TARGETS)
def test_schemas_find_a_wrong_field(deploy: Run, tmp_path: Path, target: str) -> None:
    assert deploy(target)[0] == 0
    for manifest in manifests(tmp_path / "out"):
        place = manifest.get("spec", manifest)
        place["replica"] = 1
        with pytest.raises(jsonschema.ValidationError, match="replica"):
            require_valid(manifest, NEWEST)


def test_probes_limits_and_ends_of_a_pod(deploy: Run, tmp_path: Path) -> None:
    assert deploy("kubernetes", "--request-timeout", "20.5", "--queue-timeout", "3")[0] == 0
    deployment = of_kind(tmp_path / "out", "Deployment")["spec"]
    pod = deployment["template"]["spec"]
    server, gateway = (containers(tmp_path / "out")[name] for name in ("server", "gateway"))
    startup, readiness, liveness = (server[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness"))
    # Loading may take long; load is no death, and a hung process is.
    assert startup["exec"] == liveness["exec"] == {"command": ["python3", "/opt/sparse-serve/healthcheck.py"]}
    assert startup["failureThreshold"] * startup["periodSeconds"] == 300
    assert startup["timeoutSeconds"] == liveness["timeoutSeconds"] == 46
    assert environment(server)["HEALTH_SECONDS"] == "41"
    assert readiness["httpGet"] == {"path": "/v2/health/ready", "port": PORTS["gateway_metrics"]}
    live = {"path": "/v2/health/live", "port": PORTS["gateway_metrics"]}
    assert gateway["livenessProbe"]["httpGet"] == live
    # The gateway ends first, the server after all that waits in the gateway has been sent on to it.
    ends = [each["lifecycle"]["preStop"]["sleep"]["seconds"] for each in (gateway, server)]
    assert ends == [5, 9]
    drain = int(environment(server)["DRAIN_TIMEOUT"])
    assert drain == 26
    assert pod["terminationGracePeriodSeconds"] > ends[1] + drain
    config = (tmp_path / "out" / "gateway" / CONFIG).read_text()
    assert "hard-stop-after 23500ms" in config
    assert pod["terminationGracePeriodSeconds"] > ends[0] + 23.5
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert deployment["progressDeadlineSeconds"] > 300
    assert "replicas" not in deployment
    scaler = of_kind(tmp_path / "out", "HorizontalPodAutoscaler")["spec"]
    assert scaler["metrics"][0]["pods"]["target"]["averageValue"] == "300m"
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 8)


@pytest.mark.parametrize("target", TARGETS)
def test_pods_have_no_more_rights_than_they_need(deploy: Run, tmp_path: Path, target: str) -> None:
    """What the restricted standard of pod security asks for, and more."""
    assert deploy(target)[0] == 0
    kinds = {each["kind"]: each for each in manifests(tmp_path / "out")}
    if target == "kubernetes":
        pod = kinds["Deployment"]["spec"]["template"]["spec"]
    else:
        pod = kinds["InferenceService"]["spec"]["predictor"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in containers(tmp_path / "out").values():
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is rights["runAsNonRoot"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
        assert rights["runAsUser"] > 0
        assert not container["image"].endswith(":latest")
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        assert all(
            mount.get("readOnly") or mount["name"] in ("scratch", "shared-memory")
            for mount in container["volumeMounts"]
        )
    policy = kinds["NetworkPolicy"]["spec"]
    assert (policy["policyTypes"], policy["egress"]) == (["Ingress", "Egress"], [])
    clients, monitoring = policy["ingress"]
    assert clients["from"] == [{"podSelector": {}}]
    assert [each["port"] for each in clients["ports"]] == [8000, 8001]
    assert [each["port"] for each in monitoring["ports"]] == [8002, 8404]
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert monitoring["from"] == [{"namespaceSelector": namespace}]


def test_pods_that_download_their_model_may_do_so(deploy: Run, tmp_path: Path) -> None:
    assert deploy("kserve", "--storage-uri", "s3://bucket/models")[0] == 0
    assert of_kind(tmp_path / "out", "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    predictor = of_kind(tmp_path / "out", "InferenceService")["spec"]["predictor"]
    assert predictor["model"]["storageUri"] == "s3://bucket/models"


@pytest.mark.parametrize("target", TARGETS)
def test_objects_find_each_other(deploy: Run, tmp_path: Path, target: str) -> None:
    assert deploy(target, "--min-replicas", "3", "--client-namespace", "web")[0] == 0
    out = tmp_path / "out"
    kinds = {each["kind"]: each for each in manifests(out)}
    if target == "kubernetes":
        labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
        workload = "tiny"
        services = [each for each in manifests(out) if each["kind"] == "Service"]
        assert [each["metadata"]["name"] for each in services] == ["tiny", "tiny-pods"]
        assert all(each["spec"]["selector"] == labels for each in services)
    else:
        labels = kinds["InferenceService"]["spec"]["predictor"]["labels"]
        workload = "tiny-predictor"
        model = kinds["InferenceService"]["spec"]["predictor"]["model"]
        assert model["runtime"] == kinds["ServingRuntime"]["metadata"]["name"]
        formats = kinds["ServingRuntime"]["spec"]["supportedModelFormats"]
        assert model["modelFormat"].items() <= formats[0].items()
        # KServe sends requests to the first port of kserve-container.
        ports = containers(out)["server"]["ports"]
        assert [(each["name"], each["containerPort"]) for each in ports[:2]] == [
            ("http", 8000),
            ("grpc", 8001),
        ]
    assert kinds["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == workload
    for kind in ("PodDisruptionBudget", "PodMonitor"):
        assert kinds[kind]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    clients = kinds["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    assert [each["namespaceSelector"]["matchLabels"] for each in clients] == [
        {"kubernetes.io/metadata.name": "web"}
    ]
    monitored = {each["port"] for each in kinds["PodMonitor"]["spec"]["podMetricsEndpoints"]}
    assert monitored <= {port["name"] for each in containers(out).values() for port in each["ports"]}
    assert labels[kinds["PodMonitor"]["spec"]["jobLabel"]] == "tiny"
    rule, *alerts = kinds["PrometheusRule"]["spec"]["groups"][0]["rules"]
    assert [each["alert"] for each in alerts] == [
        "SparseServeDown",
        "SparseServeRefuses",
        "SparseServeFaults",
    ]
    assert all('job="tiny"' in each["expr"] for each in alerts)
    adapter = yaml.safe_load((out / "monitoring" / "prometheus-adapter.yaml").read_text())["rules"]["custom"][
        0
    ]
    assert rule["record"] in adapter["seriesQuery"]
    metric = kinds["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert metric == adapter["name"]["as"]


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_kustomize_takes_the_folder(deploy: Run, tmp_path: Path, target: str) -> None:
    assert deploy(target)[0] == 0

    def built(folder: Path) -> list[Manifest]:
        done = subprocess.run(
            [KUBECTL or "", "kustomize", folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    kinds = {each["kind"]: each for each in built(tmp_path / "out")}
    name = kinds["ConfigMap"]["metadata"]["name"]
    assert re.fullmatch("tiny-gateway-[a-z0-9]{10}", name)
    for path in (tmp_path / "out" / "gateway").iterdir():
        assert kinds["ConfigMap"]["data"][path.name].encode() == path.read_bytes()
    spec = kinds["ServingRuntime"]["spec"] if target == "kserve" else None
    volumes = (spec or kinds["Deployment"]["spec"]["template"]["spec"])["volumes"]
    assert [each["configMap"]["name"] for each in volumes if "configMap" in each] == [name]
    monitoring = {each["kind"]: each for each in built(tmp_path / "out" / "monitoring")}
    assert set(monitoring) == {"PodMonitor", "PrometheusRule", "ConfigMap"}
    assert monitoring["ConfigMap"]["metadata"]["labels"] == {"grafana_dashboard": "1"}
    board = json.loads(monitoring["ConfigMap"]["data"]["tiny.json"])
    # Others in the same Grafana have others.
    assert (board["uid"], board["title"]) == ("tiny", "sparse-serve: tiny")


@pytest.mark.parametrize(
    ("target", "arguments", "status", "message"),
    [
        ("kubernetes", ["--image", "a:latest"], 2, "--image 'a:latest' may be another one tomorrow"),
        ("kserve", ["--image", "registry:5000/a"], 2, "give a tag, such as"),
        ("kubernetes", ["--image", "a@sha256:0"], 2, "--image 'a@sha256:0' is no name of an image"),
        (
            "kserve",
            ["--gateway-image", "haproxy"],
            2,
            "--gateway-image 'haproxy' may be another one",
        ),
        ("kubernetes", ["--model-volume", "/models"], 2, "--model-volume '/models' is no volume"),
        ("kubernetes", ["--model-volume", "pvc:a/../b"], 2, "is no volume: give pvc:CLAIM"),
        (
            "kubernetes",
            ["--model-volume", "image:a/b"],
            2,
            "--model-volume 'a/b' may be another one tomorrow",
        ),
        ("kubernetes", ["--model-volume", "image:a:latest"], 2, "'a:latest' may be another one tomorrow"),
        ("kubernetes", ["--model-volume", "image:a@sha256:0"], 2, "'a@sha256:0' is no name of an image"),
        ("kserve", ["--storage-uri", "bucket"], 2, "--storage-uri 'bucket' is no URI"),
        ("kserve", ["--storage-uri", "s3://a b"], 2, "--storage-uri 's3://a b' is no URI"),
        (
            "kserve",
            ["--model-volume", "pvc:a"],
            2,
            "--model-volume is not for --target kserve: it is for kub",
        ),
        ("kubernetes", ["--host", "0.0.0.0"], 2, "--host is not for --target kubernetes: it is for compose"),
        ("compose", ["--min-replicas", "3"], 2, "it is for kubernetes and kserve"),
        ("kubernetes", ["--min-replicas", "9"], 2, "--min-replicas 9 is above --max-replicas 8"),
        ("kubernetes", ["--client-namespace", "A b"], 2, "--client-namespace 'A b' is no name in Kubernetes"),
        ("kubernetes", ["--tls-secret", "a/b"], 2, "--tls-secret 'a/b' is no name in Kubernetes"),
        ("kubernetes", ["--gateway", "a"], 2, "--gateway and --hostname are one route: give both"),
        ("kubernetes", ["--gateway", "a/b/c", "--hostname", "d"], 2, "--gateway 'a/b/c' is no name of a Gat"),
        ("kubernetes", ["--gateway", "a", "--hostname", "d:80"], 2, "--hostname 'd:80' is no name of a host"),
        (
            "kubernetes",
            ["--gateway", "a", "--hostname", "d", "--tls-secret", "mine"],
            2,
            "--tls-secret mine and --gateway a exclude each other, as a Gateway asks pods without TLS: give "
            "--gateway alone, and the certificate to the Gateway's listener",
        ),
        ("kubernetes", ["--startup-timeout", "0"], 2, "'--startup-timeout': Input should be greater than"),
        ("kubernetes", ["--report", "/none.json"], 1, "report /none.json cannot be read: No such file"),
        ("kubernetes", ["--report", "/etc/hostname"], 1, "report /etc/hostname is no JSON: give the"),
    ],
)
def test_bad_input_is_one_line(
    deploy: Run, tmp_path: Path, target: str, arguments: list[str], status: int, message: str
) -> None:
    found, output, errors = deploy(target, *arguments)
    assert (found, output) == (status, ""), errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "out").exists()


def test_options_of_other_targets_are_left_alone_in_the_environment(
    deploy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"DEPLOY_HOST": "nowhere", "STORAGE_URI": "s3://a/b", "MAX_REPLICAS": "3"}.items():
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", value)
    assert deploy("kubernetes")[0] == 0
    assert of_kind(tmp_path / "out", "HorizontalPodAutoscaler")["spec"]["maxReplicas"] == 3


def test_a_secret_in_the_environment_is_for_the_target_that_has_one(
    deploy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSE_SERVE_TLS_SECRET", "mine")
    monkeypatch.delenv("SPARSE_SERVE_STORAGE_URI", raising=False)
    assert deploy("kserve")[0] == 0
    mounts = containers(tmp_path / "out")["gateway"]["volumeMounts"]
    assert "certificate" not in {each["name"] for each in mounts}


def test_an_image_is_taken_with_tag_or_digest(deploy: Run, tmp_path: Path) -> None:
    for image in ("registry:5000/a/b:1.2", "a@sha256:" + "0" * 64, "a:latest@sha256:" + "0" * 64):
        status, _, errors = deploy("kubernetes", "--image", image)
        assert status == 0, errors
        assert containers(tmp_path / "out")["server"]["image"] == image
        status, _, errors = deploy("kubernetes", "--gateway-image", image)
        assert status == 0, errors
        assert containers(tmp_path / "out")["gateway"]["image"] == image


@pytest.mark.parametrize("target", ["kubernetes", "kserve"])
def test_images_that_may_be_others_tomorrow_are_told(deploy: Run, target: str) -> None:
    server, gateway = ("--image", "a@sha256:" + "0" * 64), ("--gateway-image", "b@sha256:" + "1" * 64)
    told = "may be another image tomorrow: give the digest, @sha256:…\n"
    for arguments, movable in (
        ((), f"sparse-serve:{__version__} and {GATEWAY_IMAGE} {told}"),
        (server, f"{GATEWAY_IMAGE} {told}"),
        (gateway, f"sparse-serve:{__version__} {told}"),
    ):
        *_, last = deploy(target, *arguments)[2].splitlines(keepends=True)
        assert last == f"warning: {movable}"
    assert "warning" not in deploy(target, *server, *gateway, "--client-namespace", "web")[2]


@pytest.mark.parametrize(
    ("target", "arguments", "ingress"),
    [
        ("kserve", (), "KServe"),
        ("kubernetes", ("--gateway", "infra/public", "--hostname", "a.example"), "the Gateway infra/public"),
    ],
)
def test_who_asks_from_another_namespace_is_told(
    deploy: Run, target: str, arguments: tuple[str, ...], ingress: str
) -> None:
    told = f"where {ingress} has its proxies in another, give that by --client-namespace"
    assert told in deploy(target, *arguments)[2]
    assert told not in deploy(target, *arguments, "--client-namespace", "infra")[2]
    assert "--client-namespace" not in deploy("kubernetes")[2]


def test_an_image_of_models_that_may_be_another_tomorrow_is_told(deploy: Run) -> None:
    digests = ("--image", "a@sha256:" + "0" * 64, "--gateway-image", "b@sha256:" + "1" * 64)
    told = deploy("kubernetes", *digests, "--model-volume", "image:models:1.2")[2]
    assert told.endswith("warning: models:1.2 may be another image tomorrow: give the digest, @sha256:…\n")
    fixed = "image:models@sha256:" + "2" * 64
    assert "warning" not in deploy("kubernetes", *digests, "--model-volume", fixed)[2]


def test_models_come_from_a_volume(deploy: Run, tmp_path: Path) -> None:
    assert deploy("kubernetes", "--model-volume", "pvc:shared/team/models")[0] == 0
    pod = of_kind(tmp_path / "out", "Deployment")["spec"]["template"]["spec"]
    volume = next(each for each in pod["volumes"] if each["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": "shared", "readOnly": True}
    mounts = [
        each for each in containers(tmp_path / "out")["server"]["volumeMounts"] if each["name"] == "models"
    ]
    assert [(each["mountPath"], each["subPath"]) for each in mounts] == [
        ("/models/tiny", "team/models/tiny"),
        ("/models/tiny_model", "team/models/tiny_model"),
    ]


@needs_haproxy
def test_haproxy_takes_a_secret_with_certificate_and_key(
    deploy: Run, tmp_path: Path, certificate: Path
) -> None:
    assert deploy("kubernetes", "--tls-secret", "mine")[0] == 0
    pod = of_kind(tmp_path / "out", "Deployment")["spec"]["template"]["spec"]
    (secret,) = (each["secret"] for each in pod["volumes"] if "secret" in each)
    assert secret["secretName"] == "mine"
    (mounted,) = (
        each["mountPath"]
        for each in containers(tmp_path / "out")["gateway"]["volumeMounts"]
        if each["name"] == "certificate"
    )
    # As the kubelet lays the two parts of a secret of the type kubernetes.io/tls.
    parts = {"tls.crt": certificate.parent / "only.pem", "tls.key": certificate.parent / "key.pem"}
    for item in secret["items"]:
        shutil.copy2(parts[item["key"]], tmp_path / item["path"])
    config = tmp_path / "out" / "gateway" / CONFIG
    config.write_text(config.read_text().replace(mounted, str(tmp_path)))
    check_config(config)


def test_one_route_leads_to_the_service(deploy: Run, tmp_path: Path) -> None:
    """Of HTTP and gRPC both, as a listener takes one kind of route for a host."""
    assert deploy("kubernetes", "--gateway", "public", "--hostname", "a.example.com")[0] == 0
    (route,) = (each["spec"] for each in manifests(tmp_path / "out") if each["kind"].endswith("Route"))
    assert route["parentRefs"] == [{"name": "public"}]
    assert route["hostnames"] == ["a.example.com"]
    served = next(each for each in manifests(tmp_path / "out") if each["kind"] == "Service")
    ports = {port["name"]: port for port in served["spec"]["ports"]}
    assert ports["grpc"]["appProtocol"] == "kubernetes.io/h2c"
    paths = {"http": "/v2", "grpc": "/inference.GRPCInferenceService"}
    for (name, path), rule in zip(paths.items(), route["rules"], strict=True):
        assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": path}}]
        assert rule["backendRefs"] == [{"name": served["metadata"]["name"], "port": ports[name]["port"]}]
        # As long as a request may wait and take, and a little more.
        assert rule["timeouts"] == {"request": "33s"}


def test_faults_are_counted_by_who_counts_them(deploy: Run, tmp_path: Path) -> None:
    """The onnxruntime backend of Triton's images, which has an entry that takes text, counts no texts."""
    faults = {
        "tiny": 'sparse_serve_refused_total{job="tiny", reason="fault"}',
        "text": 'nv_inference_request_failure{job="text", model="text", reason="BACKEND"}',
    }
    for name, counted in faults.items():
        assert deploy("kubernetes", name=name)[0] == 0
        rules = of_kind(tmp_path / "out", "PrometheusRule")["spec"]["groups"][0]["rules"]
        (alert,) = (each for each in rules if each.get("alert") == "SparseServeFaults")
        assert alert["expr"] == f"sum by (job, model) (rate({counted}[5m])) > 0"


@pytest.mark.parametrize(
    ("volume", "version"), [("pvc:models", "1.30"), ("image:models@sha256:" + "0" * 64, "1.35")]
)
def test_the_version_of_kubernetes_is_said(deploy: Run, tmp_path: Path, volume: str, version: str) -> None:
    assert deploy("kubernetes", "--model-volume", volume)[0] == 0
    about = (tmp_path / "out" / "deployment.yaml").read_text().splitlines()[0]
    assert about.endswith(f"For Kubernetes {version} or later.")


def resources(folder: Path) -> tuple[int, int, str]:
    """Memory asked for and its limit in MiB, and cores."""
    found = containers(folder)["server"]["resources"]
    sizes = [int(found[kind]["memory"].removesuffix("Mi")) for kind in ("requests", "limits")]
    return sizes[0], sizes[1], found["requests"]["cpu"]


def write_report(path: Path, *, model: str = "tiny", variant: Variant = "model", version: int = 1) -> Path:
    """Write a report of requests of two texts, one and two in flight, with a peak of a MiB for each token."""
    measured = [
        measurement(variant, length, peak=length << 20, model=model, batch=2, concurrency=concurrency)
        for length in (8, 16)
        for concurrency in (1, 2)
    ]
    served = SSAF.model_copy(update={"model": model, "version": version})
    path.write_text(report_of(measured, served=served).to_json())
    return path


def test_memory_is_as_measured(deploy: Run, tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.json")
    status, output, errors = deploy("kubernetes", "--report", str(path), "--max-body", "1m", "--json")
    assert status == 0, errors
    measured = json.loads(path.read_text())["measurements"]
    (idle,) = {round(each["memory_bytes"]["at_rest"]["value"]) for each in measured}
    # Sixteen texts at once, of 4 MiB each where four of the longest are, in an arena that grows by doubling,
    # and shared memory.
    asked = idle + (2 * 16 * 4 + 256 << 20)
    assert resources(tmp_path / "out") == (
        math.ceil(asked / 2**20),
        math.ceil((1.25 * asked + (2 * 16 << 20)) / 2**20),
        "6",
    )
    assert json.loads(output)["resources"]["memory"] == asked
    assert (
        "# Memory measured: 4 texts of 16 tokens at once, taken for 16.\n"
        in (tmp_path / "out" / "deployment.yaml").read_text()
    )
    assert deploy("compose", "--report", str(path), "--force")[0] == 0
    compose = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
    limit = compose["services"]["triton"]["deploy"]["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("b")) > asked


def test_a_report_of_another_package_says_so(deploy: Run, tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 1}))
    status, _, errors = deploy("kubernetes", "--report", str(path))
    assert status == 1
    assert f"report {path} has schema version 1, this package reads" in errors


def test_without_a_report_memory_is_estimated(deploy: Run, tmp_path: Path) -> None:
    assert deploy("kubernetes")[0] == 0
    asked, limit, _ = resources(tmp_path / "out")
    assert limit > asked > 512
    assert "# Memory estimated from files" in (tmp_path / "out" / "deployment.yaml").read_text()


def test_a_report_is_of_the_version_that_is_there(
    deploy: Run, repository: Path, tmp_path: Path, make_spec: MakeSpec
) -> None:
    """Not of one that was taken out of service."""
    path = write_report(tmp_path / "report.json")
    public = write_entry(repository, make_spec(version=2, max_batch_size=8))
    assert deploy("kubernetes", "--report", str(path))[0] == 1
    take_out_of_service(public, 2)
    assert deploy("kubernetes", "--report", str(path))[0] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "reviews"},
            "has no measurement of 'tiny', only of reviews: give the report of this entry",
        ),
        ({"variant": "packed_dense"}, "has no memory of the variants model and text of 'tiny'"),
        ({"version": 2}, "is of version 2 of 'tiny', which has version 1 now: profile it again"),
    ],
)
def test_a_report_of_something_else_is_refused(
    deploy: Run, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_report(tmp_path / "report.json", **changes)
    status, _, errors = deploy("kubernetes", "--report", str(path))
    assert status == 1
    assert message in errors
