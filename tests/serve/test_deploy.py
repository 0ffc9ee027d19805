"""The command `deploy`: the files of a target."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
import yaml
from haproxy import check_config, needs_haproxy
from manifests import require_valid_compose

from command_line import outcome
from sparse_serve.cli import app
from sparse_serve.cli.commands import CommandGroup
from sparse_serve.deploy.deployment import require_certificate
from sparse_serve.deploy.gateway import CONFIG
from sparse_serve.digests import file_digest
from sparse_serve.errors import SparseServeError
from sparse_serve.files import unfinished, write_whole
from sparse_serve.repository.computing import Computing
from sparse_serve.repository.config import CONFIG_NAME
from sparse_serve.repository.contents import MANIFEST_NAME
from sparse_serve.repository.writing import EntrySpec, write_entry

MakeSpec = Callable[..., EntrySpec]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, make_spec: MakeSpec) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_entry(folder, make_spec(computing=Computing(instances=2, threads=1), max_batch_size=8))
    return folder


@pytest.fixture
def deploy(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Deploy the entry `tiny` to `tmp_path / "out"`: status, stdout, stderr."""

    def run_deploy(*arguments: str, name: str = "tiny") -> tuple[int, str, str]:
        line = ["deploy", name, "--target", "compose", "--output-dir", str(tmp_path / "out")]
        return outcome(capsys, app, *line, "--model-repository", repository, *arguments)

    return run_deploy


def test_the_files_of_compose(deploy: Run, repository: Path, tmp_path: Path) -> None:
    status, output, errors = deploy("--json", "--host", "0.0.0.0", "--grpc-port", "9001", "--image", "a:1")
    assert status == 0, errors
    out = tmp_path / "out"
    told = json.loads(output)
    assert {Path(path) for path in told["files"]} == {path for path in out.rglob("*") if path.is_file()}
    assert errors.splitlines() == [f"wrote {path}" for path in told["files"]]
    assert told["limits"] == {
        "max_body": 4 << 20,
        "max_requests": 16,  # two instances with batches of eight
        "max_pending_requests": 16,
        "request_timeout": 30,
        "queue_timeout": 2,
    }
    compose = yaml.safe_load((out / "compose.yaml").read_text())
    services = compose["services"]
    require_valid_compose(compose)
    assert set(services) == {"triton", "gateway", "prometheus", "grafana"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service["user"].startswith("0")
        assert not service["image"].endswith(":latest")
    assert [name for name, service in services.items() if "ports" in service] == ["gateway", "grafana"]
    assert services["gateway"]["ports"] == ["0.0.0.0:8000:8000", "0.0.0.0:9001:8001"]
    assert services["triton"]["image"] == "a:1"
    assert services["triton"]["networks"] == services["prometheus"]["networks"] == ["serving"]
    assert compose["networks"]["serving"] == {"internal": True}
    # Of the repository, the server sees this entry alone.
    assert [(each["source"], each["target"]) for each in services["triton"]["volumes"]] == [
        (str((repository / name).resolve()), f"/models/{name}") for name in ("tiny", "tiny_model")
    ]
    # And of this entry, what was there when its limits were computed.
    digest = file_digest(repository / "tiny" / MANIFEST_NAME)
    assert services["triton"]["environment"]["MANIFEST_DIGESTS"] == f"tiny={digest}"
    # The dashboard is for whoever is on the machine: nobody can log in, and there is no password.
    assert services["grafana"]["ports"] == ["127.0.0.1:3000:3000"]
    assert services["grafana"]["environment"]["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    for mount in services["grafana"]["volumes"]:
        assert (out / mount["source"]).is_dir()
    provisioned = out / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioned / "dashboards" / "files.yaml").read_text())["providers"]
    shown = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert shown.parent == Path(provider["options"]["path"])
    assert json.loads((out / "grafana" / "dashboards" / shown.name).read_text())["panels"]
    prometheus = yaml.safe_load((out / "prometheus.yml").read_text())
    mounted = {each["target"]: out / each["source"] for each in services["prometheus"]["volumes"][:2]}
    (rules,) = prometheus["rule_files"]
    (group,) = yaml.safe_load(mounted[f"/etc/prometheus/{rules}"].read_text())["groups"]
    assert {each["labels"]["severity"] for each in group["rules"]} == {"critical", "warning"}
    scraped = prometheus["scrape_configs"]
    assert [job["static_configs"][0]["targets"] for job in scraped] == [["triton:8002"], ["gateway:8404"]]


def test_its_help_is_of_all_targets(deploy: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, output, errors = deploy("--help")
    assert (status, errors) == (0, "")
    for option in ("--report", "--tls-cert", "--model-volume", "--storage-uri", "--gateway", "--hostname"):
        assert option in output
    assert "pvc:CLAIM/FOLDER" in " ".join(output.split())
    group = typer.main.get_command(app)
    assert isinstance(group, CommandGroup)
    command = group.get_command(typer.Context(group), "deploy")
    assert command is not None
    assert [each.name for each in command.params if not getattr(each, "help", None)] == []


def test_options_are_in_the_files_and_read_from_the_environment(
    deploy: Run, tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {
        "MAX_BODY": "512k",
        "MAX_REQUESTS": "5",
        "MAX_PENDING_REQUESTS": "0",
        "REQUEST_TIMEOUT": "1.5",
        "QUEUE_TIMEOUT": "0.5",
        "TLS_CERT": str(certificate),
    }
    for name, value in chosen.items():
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", value)
    status, output, errors = deploy()
    assert status == 0, errors
    assert output == f"docker compose --project-directory {tmp_path / 'out'} up --detach --wait\n"
    config = (tmp_path / "out" / "gateway" / CONFIG).read_text()
    for part in (
        "req.body_size gt 524288",
        "maxconn 5 ",
        "be_conn(http_inference) ge 5",
        "timeout server 1500ms",
        "timeout check 1500ms",
        "timeout queue 500ms",
        "bind :8001 ssl crt /run/secrets/tls_certificate ssl-min-ver TLSv1.2 alpn h2",
    ):
        assert part in config
    compose = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
    assert compose["secrets"] == {"tls_certificate": {"file": str(certificate)}}
    assert compose["services"]["gateway"]["secrets"] == ["tls_certificate"]
    assert "PRIVATE" not in "".join(path.read_text() for path in (tmp_path / "out").glob("*.*"))


def test_a_model_has_time_to_load(deploy: Run, tmp_path: Path) -> None:
    """Or Docker calls the server unhealthy, and nothing that depends on it starts."""
    for arguments, period in (((), "300s"), (("--startup-timeout", "900"), "900s")):
        assert deploy(*arguments)[0] == 0
        compose = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
        assert compose["services"]["triton"]["healthcheck"]["start_period"] == period


def test_the_command_that_starts_it_is_for_a_shell(deploy: Run, tmp_path: Path) -> None:
    status, output, errors = deploy("--output-dir", str(tmp_path / "my films"))
    assert status == 0, errors
    assert shlex.split(output)[3] == str(tmp_path / "my films")


@needs_haproxy
def test_haproxy_takes_the_gateway(deploy: Run, tmp_path: Path) -> None:
    assert deploy()[0] == 0
    check_config(tmp_path / "out" / "gateway" / CONFIG)


def test_only_its_own_files_are_replaced(deploy: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert deploy()[0] == 0
    assert deploy("--max-requests", "3")[0] == 0
    assert "maxconn 3 " in (out / "gateway" / CONFIG).read_text()
    assert "    maxconn 2100\n" in (out / "gateway" / CONFIG).read_text()
    # Refusals have connections of their own.
    assert deploy("--max-requests", "1500", "--max-pending-requests", "700")[0] == 0
    assert "    maxconn 5500\n" in (out / "gateway" / CONFIG).read_text()
    (out / "gateway" / CONFIG).write_text("mine\n")
    status, _, errors = deploy()
    assert status == 1
    assert f"holds gateway/{CONFIG}, which deploy did not write, or not as it is now" in errors
    assert (out / "gateway" / CONFIG).read_text() == "mine\n"
    assert deploy("--force")[0] == 0
    (out / "notes.txt").write_text("mine\n")
    assert "holds notes.txt" in deploy()[2]
    assert deploy("--force")[0] == 0
    assert (out / "notes.txt").read_text() == "mine\n"


def test_what_an_interrupted_run_left_is_its_own(
    deploy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def killed(path: Path, text: str, mode: int | None = None) -> None:
        if path.name == CONFIG:
            path.with_name(unfinished(path.name)).write_text(text[:100])
            raise KeyboardInterrupt
        write_whole(path, text, mode)

    assert deploy()[0] == 0
    whole = (out / "gateway" / CONFIG).read_text()
    for requests in ("3", "5"):
        monkeypatch.setattr("sparse_serve.deploy.files.write_whole", killed)
        assert deploy("--max-requests", requests, "--http-port", f"800{requests}")[0] == 130
        assert (out / "gateway" / CONFIG).read_text() == whole
    monkeypatch.undo()
    edited = (out / "compose.yaml").read_text()
    (out / "compose.yaml").write_text("mine\n")
    assert "holds compose.yaml, which deploy did not write" in deploy()[2]
    (out / "compose.yaml").write_text(edited)
    other = out / unfinished("part.parquet")
    other.touch()
    assert f"holds {other.name}, which deploy did not write" in deploy()[2]
    assert deploy("--force")[0] == 0
    other.unlink()  # which is not deploy's to remove
    status, output, errors = deploy("--json")
    assert status == 0, errors
    written = {Path(path) for path in json.loads(output)["files"]}
    assert {path for path in out.rglob("*") if path.is_file()} == written


def test_users_of_containers_can_read_it_whatever_the_umask(deploy: Run, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert deploy()[0] == 0
    finally:
        os.umask(before)
    out = tmp_path / "out"
    modes = {path: path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    assert modes == {path: 0o755 if path.is_dir() else 0o644 for path in modes}


def test_variables_of_other_commands_are_not_its_own(
    deploy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE": "1", "GPUS": "all", "HOST": "0.0.0.0"}.items():
        monkeypatch.setenv(f"SPARSE_SERVE_{name}", value)
    status, _, errors = deploy()
    assert status == 0, errors
    services = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())["services"]
    assert services["gateway"]["ports"][0] == "127.0.0.1:8000:8000"
    (tmp_path / "out" / "compose.yaml").write_text("mine\n")
    assert deploy()[0] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "status", "message"),
    [
        ("none", [], 1, "none is no entry of a model repository: it has no manifest.json"),
        ("../tiny", [], 1, "entry name '../tiny' is not allowed"),
        ("tiny", ["--target", "nomad"], 2, "'nomad' is not"),
        ("tiny", ["--max-body", "4 MiB"], 2, "--max-body '4 MiB' is no size up to 2g"),
        ("tiny", ["--max-body", "3g"], 2, "--max-body '3g' is no size up to 2g"),
        ("tiny", ["--max-requests", "0"], 2, "'--max-requests': Input should be greater than or equal to 1"),
        ("tiny", ["--queue-timeout", "0"], 2, "'--queue-timeout': Input should be greater than"),
        ("tiny", ["--request-timeout", "nan"], 2, "'--request-timeout'"),
        (
            "tiny",
            ["--http-port", "8001"],
            2,
            "--http-port 8001, --grpc-port 8001 and --grafana-port 3000 are not three",
        ),
        ("tiny", ["--image", "-v"], 2, "--image '-v' is no name of an image"),
        ("tiny", ["--host", "::1"], 1, "give an IPv4 address"),
        ("tiny", ["--tls-cert", "/none.pem"], 1, "--tls-cert /none.pem cannot be read: No such file"),
        ("tiny", ["--tls-cert", "/etc/hostname"], 1, "is not a PEM file with a certificate and its key"),
        ("tiny", ["--output-dir", "/proc/x"], 1, "--output-dir /proc/x cannot be written: No such file"),
        (
            "tiny",
            ["--output-dir", "/etc/hostname"],
            1,
            "--output-dir /etc/hostname cannot be written: File exists",
        ),
    ],
)
def test_bad_input_is_one_line(
    deploy: Run, tmp_path: Path, name: str, arguments: list[str], status: int, message: str
) -> None:
    found, output, errors = deploy(*arguments, name=name)
    assert (found, output) == (status, ""), errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "out").exists()


def test_an_entry_with_a_fault_is_not_deployed(tmp_path: Path, make_spec: MakeSpec, deploy: Run) -> None:
    entry = write_entry(tmp_path / "faulty", make_spec())
    config = entry / CONFIG_NAME
    config.write_text(config.read_text().replace('"sparse_serve_text"', '"other"'))
    status, _, errors = deploy("--model-repository", str(tmp_path / "faulty"))
    assert status == 1
    assert "has another backend than the export wrote" in errors


def test_what_the_container_would_not_serve_is_not_deployed(
    tmp_path: Path, make_spec: MakeSpec, deploy: Run
) -> None:
    """Files that are not of the export, and those that its user may not read."""
    entry = write_entry(tmp_path / "models", make_spec())
    own = ("--model-repository", str(tmp_path / "models"))
    (entry / "1" / "notes.txt").write_text("mine")
    status, _, errors = deploy(*own)
    assert status == 1
    assert "entry 'tiny' is not fit to serve" in errors
    assert "notes.txt" in errors
    (entry / "1" / "notes.txt").unlink()
    (entry / CONFIG_NAME).chmod(0o600)
    status, _, errors = deploy(*own)
    assert status == 1
    assert f"{entry / CONFIG_NAME} cannot be read by user 1000" in errors
    assert deploy(*own, "--target", "kubernetes")[0] == 0


def test_a_link_to_an_entry_is_not_deployed(tmp_path: Path, repository: Path, deploy: Run) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "other").symlink_to(repository / "tiny")
    status, _, errors = deploy("--model-repository", str(models), name="other")
    assert status == 1
    assert f"other is a link to {repository / 'tiny'}, which is not in the repository" in errors


def test_a_certificate_without_its_key_is_refused(certificate: Path) -> None:
    with pytest.raises(SparseServeError, match="put both into one file"):
        require_certificate(certificate.parent / "only.pem")
