"""Starting and stopping Triton: what is refused, what is reported, and that nothing is left behind."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from fake_triton import RECORDING_TRITON, write_triton
from serving import addresses, alive, leftovers, pending, serve, wait_for
from slow_model import ask_http, write_slow_model

from sparse_serve import op_library
from sparse_serve.client import Client
from sparse_serve.errors import OpLibraryError, OptionError, RepositoryError, ServerError
from sparse_serve.repository.config import CONFIG_NAME
from sparse_serve.repository.manifest import OpLibrary
from sparse_serve.repository.writing import EntrySpec, write_entry
from sparse_serve.triton import installation, preflight, probe
from sparse_serve.triton.installation import backend_directory, find_triton
from sparse_serve.triton.launcher import TritonServer
from sparse_serve.triton.log import reason_in_log
from sparse_serve.triton.preflight import claim_ports, end_interrupted_exports, servable_models
from sparse_serve.triton.server import ServerOptions

MakeSpec = Callable[..., EntrySpec]


def options(repository: Path, **changes: object) -> ServerOptions:
    """Free ports, and no patience at the end: being killed must leave as little as being stopped."""
    defaults = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "stop_seconds": 0.0}
    return ServerOptions(repository, **{**defaults, **changes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    own = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setenv("TMPDIR", str(own))
    before = leftovers()
    yield
    assert set(leftovers()) <= set(before)


@pytest.fixture
def repository(tmp_path: Path, make_spec: MakeSpec) -> Path:
    write_entry(tmp_path / "models", make_spec())
    return tmp_path / "models"


@pytest.fixture
def needing_library(tmp_path: Path, make_spec: MakeSpec, graph_with_domain_nodes: Path) -> Path:
    recorded = OpLibrary(version=1, sha256="0" * 64)
    write_entry(tmp_path / "models", make_spec(graph=graph_with_domain_nodes, op_library=recorded))
    return tmp_path / "models"


def test_a_server_runs_and_leaves_nothing(repository: Path) -> None:
    before = len(leftovers())
    server = TritonServer(options(repository, stop_seconds=30.0))
    with server:
        processes = [psutil.Process(pid) for pid in server.process_ids()]
        assert len(processes) >= 3
        assert server.models == ("tiny", "tiny_model")
        assert len(leftovers()) >= before + 3
        server.check()
    assert not [process for process in processes if process.is_running()]
    assert server.process_ids() == []
    server.stop()


@pytest.fixture
def obliging_port() -> Iterator[int]:
    """A port where something else answers, and calls itself ready, as another Triton does."""

    class Obliging(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Obliging) as taker:
        threading.Thread(target=taker.serve_forever, daemon=True).start()
        yield taker.server_port
        taker.shutdown()


def test_a_free_port_that_is_taken_meanwhile_is_another_one(
    repository: Path, obliging_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where any port will do."""
    found = [(obliging_port, *preflight.claim_ports("127.0.0.1", 0, 0, 0)[1:])]
    claim = preflight.claim_ports
    monkeypatch.setattr(
        "sparse_serve.triton.server.claim_ports", lambda *ports: found.pop() if found else claim(*ports)
    )
    with TritonServer(options(repository)) as server:
        assert not found
        assert server.http_port != obliging_port
    found.append((obliging_port, *claim("127.0.0.1", 0, 0, 0)[1:]))
    named = ServerOptions(repository, obliging_port, *found[0][1:])
    with pytest.raises(ServerError, match="already in use"):
        TritonServer(named).start()


@pytest.mark.parametrize("losses", [1, 3])
def test_a_triton_that_lost_a_race_with_itself_is_started_again(
    repository: Path, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """Twice, no more."""
    reason = "Triton could not start: what():  boost::interprocess::lock_exception"
    left = [ServerError(reason) for _ in range(losses)]
    wait = TritonServer._wait_until_ready

    def lose(server: TritonServer) -> None:
        if left:
            raise left.pop()
        wait(server)

    monkeypatch.setattr(TritonServer, "_wait_until_ready", lose)
    server = TritonServer(options(repository))
    if losses == 1:
        with server:
            server.check()
    else:
        with pytest.raises(ServerError, match="lock_exception"):
            server.start()
    assert not left


def test_a_killed_stub_is_noticed_and_cleaned_up_after(repository: Path) -> None:
    with TritonServer(options(repository)) as server:
        stub = next(pid for pid in server.process_ids()[1:] if "stub" in psutil.Process(pid).name())
        os.kill(stub, signal.SIGKILL)
        wait_for(lambda: psutil.Process(stub).status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(ServerError, match=rf"model 'tiny' answers no more, its process {stub} has died"):
            server.check()


def test_a_killed_server_is_noticed_and_cleaned_up_after(repository: Path) -> None:
    with TritonServer(options(repository)) as server:
        processes = [psutil.Process(pid) for pid in server.process_ids()]
        server.kill()
        wait_for(lambda: server.poll() is not None)
        with pytest.raises(ServerError, match="Triton was ended by SIGKILL"):
            server.check()
    assert not [process for process in processes if process.is_running()]


@pytest.mark.parametrize("protocol", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named(repository: Path, taken_port: int, protocol: str) -> None:
    server = TritonServer(options(repository, **{f"{protocol}_port": taken_port}))
    expected = f"port {taken_port} on 127.0.0.1 .* in use; choose another with --{protocol}-port"
    with pytest.raises(ServerError, match=expected):
        server.start()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("::1", "address '::1' cannot be listened on: .*; give an IPv4 address"),
        ("no.such.host.invalid", "address 'no.such.host.invalid' cannot be listened on"),
        ("a" * 70, "address 'a{70}' cannot be listened on"),
        ("a..b", "address 'a..b' cannot be listened on"),
        ("", "address '' cannot be listened on: give an IPv4 address, 0.0.0.0 for all"),
    ],
)
def test_an_address_that_is_not_ours_is_named(repository: Path, address: str, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        TritonServer(options(repository, address=address)).start()


@pytest.mark.parametrize("address", ["0.0.0.0", "203.0.113.1"])
def test_the_bundled_triton_listens_on_loopback_only(repository: Path, address: str) -> None:
    with pytest.raises(
        OptionError, match=rf"--host {address} is open .* 24.10 has known vulnerabilities: .* docker/"
    ):
        TritonServer(options(repository, address=address, mode="bundled")).start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log-verbose=1", "--http-address=0.0.0.0"], "--http-address=0.0.0.0 is .*: give --host"),
        (["--grpc-address", "0.0.0.0"], "--grpc-address is .*: give --host"),
        (["--metrics-a=0.0.0.0"], "--metrics-a=0.0.0.0 is .*: give --host"),
        (["--http-port=80"], "--http-port=80 is .*: give --http-port before the --"),
        (["--grpc-port", "80"], "give --grpc-port before"),
        (["--metrics-port=80"], "give --metrics-port before"),
        (["--allow-vertex-ai=true"], "on every address"),
        (["--allow-sagemaker", "true"], "on every address"),
    ],
)
def test_where_to_listen_is_not_passed_through(repository: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TritonServer(options(repository, extra_args=arguments)).start()


def test_blanks_in_paths_are_refused_beside_a_python_backend(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton hands the paths of its Python stubs to a shell as they are."""
    renamed = repository.rename(repository.with_name("a b"))
    with pytest.raises(RepositoryError, match=r"model repository '.*/a b' has a blank in its path"):
        TritonServer(options(renamed)).launch_line()
    monkeypatch.setattr(tempfile, "tempdir", str(renamed))
    with pytest.raises(ServerError, match=r"temporary files, '.*/a b', has a blank in its path, .* TMPDIR"):
        TritonServer(options(renamed.rename(repository))).launch_line()


def test_blanks_in_paths_are_served_where_nothing_runs_in_python(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "a b" / "models"
    repository.mkdir(parents=True)
    write_entry(repository, make_spec(takes_text=True))
    monkeypatch.setattr(tempfile, "tempdir", str(repository.parent))
    with TritonServer(options(repository, mode="bundled")) as running, Client(running.http_url) as client:
        assert client.classify("tiny", ["fine"])[0].label == "negative"


def refuse_inference(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """Have every request to a model answered with status 400."""
    send = probe._request

    def refuse(url: str, method: str, path: str, body: str | None, timeout: float) -> tuple[int, str]:
        answer = send(url, method, path, body, timeout)
        return (400, "not\ntoday") if path == f"/v2/models/{model}/infer" else answer

    monkeypatch.setattr(probe, "_request", refuse)


@pytest.mark.parametrize("model", ["tiny", "tiny_model"])
def test_an_entry_that_refuses_its_first_request_is_not_ready(
    repository: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    refuse_inference(monkeypatch, model)
    with pytest.raises(ServerError, match=f"model '{model}' does not answer: not today"):
        TritonServer(options(repository)).start()


def test_a_foreign_model_may_refuse_a_request_it_was_not_made_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(repository / "tiny_model", repository / "foreign")
    config = repository / "foreign" / CONFIG_NAME
    config.write_text(config.read_text().replace('name: "tiny_model"\n', "", 1))
    refuse_inference(monkeypatch, "foreign")
    with TritonServer(options(repository)) as server:
        assert server.models == ("foreign", "tiny", "tiny_model")


def test_two_protocols_do_not_share_a_port() -> None:
    with pytest.raises(OptionError, match="--http-port 8000, --grpc-port 0 and --metrics-port 8000 are not"):
        claim_ports("127.0.0.1", 8000, 0, 8000)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ServerError, match=r"port 0 on 203.0.113.1 cannot be used: Cannot assign requested"):
        preflight.claim_ports("203.0.113.1", 0, 0, 0)


def test_names_are_resolved_and_networks_recognised() -> None:
    assert preflight.ipv4_address("localhost") == "127.0.0.1"
    assert ServerOptions(Path(), address="localhost").is_loopback
    assert not ServerOptions(Path(), address="0.0.0.0").is_loopback
    assert TritonServer(ServerOptions(Path(), address="0.0.0.0")).http_url == "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("graph", "model 'tiny_model' version 1: .*Protobuf parsing failed"),
        ("tokenizer", "model 'tiny' version 1: .*tokenizer.json cannot be read"),
        ("config", r"malformed"),
    ],
)
def test_a_model_that_does_not_load_is_named_with_the_reason(
    repository: Path, fault: str, message: str
) -> None:
    broken = {
        "graph": repository / "tiny_model" / "1" / "model.onnx",
        "tokenizer": repository / "tiny" / "tokenizer.json",
        "config": repository / "tiny" / CONFIG_NAME,
    }[fault]
    broken.write_text("broken {")
    with pytest.raises((ServerError, RepositoryError), match=message) as raised:
        TritonServer(options(repository, verify=False)).start()
    assert "\n" not in str(raised.value)


def test_an_unknown_argument_of_triton_is_reported(repository: Path) -> None:
    with pytest.raises(ServerError, match="unrecognized option '--frobnicate'"):
        TritonServer(options(repository, extra_args=("--frobnicate",))).start()


def test_repositories_without_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="holds no model"):
        servable_models(tmp_path)
    with pytest.raises(RepositoryError, match="is not a folder"):
        servable_models(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["negative\n", "negative\npositive\nneutral\n", "positive\nnegative\n"])
def test_labels_that_are_not_the_models_are_refused(repository: Path, content: str) -> None:
    """Triton would read them, and answer some texts with another label or with an error."""
    (repository / "tiny" / "labels.txt").write_text(content)
    with pytest.raises(RepositoryError, match=r"entry 'tiny' is not fit to serve: labels.txt has \["):
        servable_models(repository)


def test_files_are_verified_unless_asked_not_to(repository: Path) -> None:
    graph = repository / "tiny_model" / "1" / "model.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    assert servable_models(repository, verify=False) == ("tiny", "tiny_model")
    with pytest.raises(RepositoryError, match=r"tiny_model/1/model\.onnx has been changed since it was exp"):
        TritonServer(options(repository)).start()


def test_only_what_is_wanted_of_a_repository_must_be_fit(repository: Path, make_spec: MakeSpec) -> None:
    write_entry(repository, make_spec(name="broken"))
    (repository / "broken" / "labels.txt").unlink()
    assert servable_models(repository, ["tiny_model"]) == ("tiny_model",)
    with pytest.raises(RepositoryError, match=r"entry 'broken' .*labels.txt cannot be read: No such file"):
        servable_models(repository)


def test_a_missing_library_is_refused_unless_portable(
    needing_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op_library, "LIBRARY_NAME", "libabsent.so")
    with pytest.raises(
        OpLibraryError, match=r"model 'tiny_model' needs the op library, .*missing.*--portable"
    ):
        TritonServer(options(needing_library)).start()
    with TritonServer(options(needing_library, portable=True)) as server:
        assert server.models == ("tiny", "tiny_model")


def test_a_library_with_another_digest_is_refused(
    needing_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "libsparse_ops.so"
    other.write_bytes(b"not the library")
    monkeypatch.setattr(op_library, "library_path", lambda device: other)
    with pytest.raises(OpLibraryError, match="it is not the file that was installed"):
        TritonServer(options(needing_library)).start()


def test_an_entry_for_another_library_version_is_refused(
    needing_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "verify_library", lambda device: Path("libsparse_ops.so"))
    monkeypatch.setattr(preflight, "library_version", lambda path: 2)
    with pytest.raises(
        OpLibraryError, match=r"entry 'tiny' was made for version 1 .* installed is version 2"
    ):
        TritonServer(options(needing_library)).start()


def test_numpy_2_is_refused_beside_a_python_backend(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparse_serve.triton.installation.version", lambda package: "2.3.0")
    with pytest.raises(ServerError, match=r"numpy 2.3.0 breaks .* sparse_serve_text of a model .* numpy<2"):
        TritonServer(options(repository, mode="bundled")).start()


def test_no_triton_at_all_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerError, match="no tritonserver on PATH"):
        TritonServer(options(repository, mode="path")).start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal(repository: Path, tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "triton.log"
    process = serve(repository, "--log-file", str(log))
    assert process.stdout is not None
    urls = dict(process.stdout.readline().split() for _ in range(3))
    assert urls["http"].startswith("http://127.0.0.1:")
    assert list(urls) == ["http", "grpc", "metrics"]
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert not alive(children)
    assert not leftovers(process.pid)
    assert "successfully loaded 'tiny_model'" in log.read_text()


def test_a_second_signal_kills(repository: Path) -> None:
    """What is in flight too, for which the first one would have it wait for ten minutes."""
    write_slow_model(repository)
    process = serve(repository, "--drain-timeout", "600")
    urls = addresses(process)
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(ask_http, HTTPConnection(urls["http"]), 600.0) for _ in range(2)]
        try:
            wait_for(lambda: pending(urls["metrics"], "slow") == 1)  # which says that the other is in work
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert any(line.startswith("stopping") for line in process.stderr)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            assert not any(answer.done() for answer in answers)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()  # or the answers would be waited for
        assert process.returncode == 0, errors
        for answer in answers:
            with pytest.raises((OSError, HTTPException)):  # whichever way the connection breaks
                answer.result(timeout=30)
    assert not leftovers(process.pid)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.3])
def test_an_interrupted_start_leaves_nothing(repository: Path, delay: float) -> None:
    """The delays fall before, into and after the start of Triton's process."""
    process = serve(repository)
    wait_for(lambda: leftovers(process.pid))
    time.sleep(delay)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    # A fast machine may be ready by then, and ends as a served repository does.
    assert process.returncode in (130, 0)
    assert not alive(children)
    assert not leftovers(process.pid)


def test_the_command_fails_in_one_line(tmp_path: Path) -> None:
    process = serve(tmp_path / "nowhere")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == ""
    assert errors == f"error: model repository {tmp_path / 'nowhere'} is not a folder\n"


def test_a_repository_that_cannot_be_read_is_no_interrupted_export(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"model repository .* cannot be read: File name too long"):
        end_interrupted_exports(tmp_path / ("a" * 300))


def test_a_triton_on_path_gets_the_flags_it_knows(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    programs = tmp_path / "bin"
    write_triton(programs, RECORDING_TRITON.format(record=record))
    (tmp_path / "backends" / "python").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(ServerError, match="error: fake"):
        TritonServer(options(repository, extra_args=("--log-verbose=1",))).start()
    library_path, *arguments = record.read_text().splitlines()
    assert str(op_library.library_path().parent) in library_path.split(":")
    closed = "shared-memory,model-repository,trace,logging"
    *before, key, last = arguments
    assert [*before, last] == [
        f"--model-repository={repository}",
        "--http-address=127.0.0.1",
        "--log-verbose=1",
    ]
    assert re.fullmatch(f"--http-restricted-api={closed}:no:header=[0-9a-f]{{32}}", key)


def test_a_triton_whose_apis_cannot_be_closed_is_not_started(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, programs = tmp_path / "record", tmp_path / "bin"
    script = RECORDING_TRITON.replace("--http-restricted-api <x>", "--http-port <integer>")
    write_triton(programs, script.format(record=record))
    (tmp_path / "backends" / "python").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(ServerError, match="tritonserver does not know --http-restricted-api, and its port"):
        TritonServer(options(repository)).start()
    assert not record.exists()


def test_backends_of_a_triton_on_path_are_merged_with_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own the ones that models name; its onnxruntime backend stays its own."""
    root = tmp_path / "triton"
    for name in ("python/libtriton_python.so", "onnxruntime/libtriton_onnxruntime.so", "pytorch/x", "bin"):
        (root / "backends" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "backends" / name).write_text(name)
    write_triton(root / "bin", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    installation = find_triton("path")
    assert installation.has_onnxruntime
    needed = ("onnxruntime", "sparse_serve_text", "", "../bin", "absent")
    target = backend_directory(installation, tmp_path / "merged", needed)
    found = {path.name: sorted(each.name for each in path.iterdir()) for path in target.iterdir()}
    assert found == {
        "python": ["libtriton_python.so"],
        "onnxruntime": ["libtriton_onnxruntime.so"],
        "sparse_serve_text": ["model.py", "sparse_serve"],
    }
    assert not any(path.is_symlink() for path in target.rglob("*"))
    assert (target / "onnxruntime" / "libtriton_onnxruntime.so").read_text().startswith("onnxruntime/")


@pytest.fixture
def triton_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with a link to a server that has none of the usual folders around it."""
    program = tmp_path / "store" / "some" / "where" / "triton"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "tritonserver").symlink_to(program)
    monkeypatch.setenv("PATH", f"{tmp_path / 'usr' / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(installation, "_USUAL_HOME", tmp_path / "opt" / "tritonserver")
    return tmp_path


@pytest.mark.parametrize("home", ["usr", "usr/bin", "store/some", "store/some/where", "opt/tritonserver"])
def test_backends_of_a_triton_on_path_are_found(triton_on_path: Path, home: str) -> None:
    backends = triton_on_path / home / "backends"
    (backends / "python").mkdir(parents=True)
    found = find_triton()
    assert (found.kind, found.backends) == ("path", backends)
    assert found.executable == triton_on_path / "store" / "some" / "where" / "triton"


def test_a_triton_on_path_without_backends_is_refused(triton_on_path: Path) -> None:
    expected = (
        rf"Triton at {triton_on_path}/usr/bin/tritonserver has no backends: none of python or onnxruntime is "
        rf"in {triton_on_path}/store/some/where/backends, .*/opt/tritonserver/backends; .* --mode bundled"
    )
    with pytest.raises(ServerError, match=expected):
        find_triton()


def test_a_triton_on_path_without_the_backend_that_models_need_is_refused(
    triton_on_path: Path, repository: Path
) -> None:
    backends = triton_on_path / "usr" / "backends"
    (backends / "onnxruntime").mkdir(parents=True)
    find_triton().require_backends(["onnxruntime", ""])
    with pytest.raises(ServerError, match=rf"no Python backend in {backends}, .* sparse_serve_text of a mo"):
        TritonServer(options(repository)).start()


def test_python_backends_alone_need_a_stub_for_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = find_triton("bundled")
    without = replace(bundled, stub=None)
    monkeypatch.setattr(installation, "version", lambda package: "2.4.1")
    for found in (bundled, without):
        found.require_backends(["onnxruntime", ""])
    with pytest.raises(
        ServerError, match=r"no Python stub for Python 3.1\d, .* sparse_serve_text of a model"
    ):
        without.require_backends(["sparse_serve_text"])


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "it wrote no log"),
        (
            'E1121 11:58:11.829838 8115 server.cc:241] "CudaDriverHelper has not been initialized."\nlast',
            "last",
        ),
        ("E0101 12:00:00.000000 1 server.cc:1] old style", "old style"),
        ('I0101 12:00:00.000000 1 a.cc:1] fine\nE0101 12:00:00.000000 1 b.cc:2] "bad"', "bad"),
        (
            "| m     | 1       | UNAVAILABLE: Internal: first |\n"
            "|       |         |   second                     |\n"
            "|       |         | At:                          |\n"
            "|       |         |   /x/model.py(1): initialize |\n",
            "model 'm' version 1: Internal: first second",
        ),
    ],
)
def test_the_reason_is_found_in_the_log(log: str, reason: str) -> None:
    assert reason_in_log(log) == reason
