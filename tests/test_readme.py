"""The commands of README.md and of most pages of docs/, run as a newcomer would: on fewer rows and layers.

Those of docs/report.md are not: its two reports would take another minute.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from few_layers import few_layers
from sparse_serve.repository.releases import RELEASES
from tiny_models import make_tokenizer
from warm_command import warm_command

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# What can be done with the README's model, and with others.
PAGES = ("README", "docs/clients", "docs/operations", "docs/deploy")
OTHER_MODELS = ("docs/training", "docs/attention")
# What makes the way short enough for a test; the commands stay the pages'.
SHORTER = {
    "--epochs 5 --learning-rate 5e-5": "--epochs 2 --learning-rate 5e-5",
    "--epochs 6 --learning-rate 5e-5": "--epochs 2 --learning-rate 5e-5",
    "--epochs 8 --batch-size 4": "--epochs 1 --batch-size 8",
    "--epochs 4 --batch-size 8": "--epochs 1 --batch-size 8",
    "--epochs 4 --learning-rate 5e-5": "--epochs 1 --learning-rate 5e-5",
    "--layer 4 --head 9": "--layer 1 --head 9",
}
SERVE = "sparse-serve serve model_repository"
ASKS = ("sparse-serve classify", "curl")
# What is installed already, and what needs an engine.
ELSEWHERE = ("pip install", "docker", "kubectl")
HUB_MODEL = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"


def blocks(language: str, page: str) -> list[str]:
    """Fenced blocks of a page, in order."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(page: str) -> list[str]:
    """Commands of a page, each with the lines that it goes on in, but for those that are run elsewhere."""
    lines = [
        line
        for block in blocks("bash", page)
        for line in re.sub(r"\\\n *", "", block).splitlines()
        if not line.startswith((*ELSEWHERE, "make "))
    ]
    assert all(line.startswith(("sparse-serve ", "curl ")) for line in lines)
    return lines


def in_the_hubs_cache(folder: Path) -> None:
    """Put a tiny classifier where the library looks before it asks the hub."""
    snapshot = folder / "hub" / f"models--{HUB_MODEL.replace('/', '--')}" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0", encoding="utf-8")
    config = AutoConfig.for_model("distilbert", vocab_size=96, dim=64, n_layers=1, n_heads=2, hidden_dim=96)
    config.id2label = {0: "NEGATIVE", 1: "POSITIVE"}
    AutoModelForSequenceClassification.from_config(config).save_pretrained(snapshot)
    make_tokenizer(snapshot, "distilbert").save_pretrained(snapshot)


def free_ports() -> list[int]:
    """Three ports below those that a system hands out: nobody is given one before it is served on."""
    found: set[int] = set()
    while len(found) < 3:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)


class Newcomer:
    """A shell in a fresh folder with the demo's reviews, an encoder, and ports of its own."""

    def __init__(self, folder: Path, encoder: str, programs: Path) -> None:
        shutil.copytree(ROOT / "demo", folder / "demo")
        shutil.copytree(ROOT / "model_repository" / "sample", folder / "model_repository" / "sample")
        self.folder = folder
        self.http_port, grpc_port, metrics_port = free_ports()
        self.environment = os.environ | {
            "PATH": f"{programs}:{SCRIPTS}:{os.environ['PATH']}",
            "ENCODER": encoder,
            "SPARSE_SERVE_MAX_TRAIN_ROWS": "48",
            "SPARSE_SERVE_MAX_EVAL_ROWS": "24",
            "SPARSE_SERVE_MAX_LENGTH": "64",
            "SPARSE_SERVE_VARIANTS": "model,padded_eager",
            "SPARSE_SERVE_LENGTHS": "16",
            "SPARSE_SERVE_ROUNDS": "1",
            "SPARSE_SERVE_MEASUREMENT_INTERVAL": "100",
            "SPARSE_SERVE_MAX_TRIALS": "3",
            "SPARSE_SERVE_THREADS": "1",
            "SPARSE_SERVE_HTTP_PORT": str(self.http_port),
            "SPARSE_SERVE_GRPC_PORT": str(grpc_port),
            "SPARSE_SERVE_METRICS_PORT": str(metrics_port),
            "SPARSE_SERVE_URL": f"127.0.0.1:{self.http_port}",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def shell(self, code: str) -> str:
        code = code.replace(":8000/", f":{self.http_port}/")
        for long, short in SHORTER.items():
            code = code.replace(long, short)
        return self.run("bash", "-euo", "pipefail", "-c", code)

    def python(self, code: str) -> str:
        return self.run(sys.executable, "-c", code.replace(":8000", f":{self.http_port}"))

    @contextmanager
    def serve(self) -> Iterator[None]:
        server = subprocess.Popen(
            SERVE.split(), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline(), "serve ended before it was ready"
            yield
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)
        assert server.returncode == 0


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    found = subprocess.run(
        [sys.executable, ROOT / "demo" / "encoder_path.py"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"no encoder for the README's commands: {found.stderr.strip()}")
    encoder = few_layers(Path(found.stdout.strip()), tmp_path_factory.mktemp("encoder") / "encoder")
    cache = tmp_path_factory.mktemp("hugging_face")
    in_the_hubs_cache(cache)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("HF_HOME", str(cache))  # which is read when the library is imported
        patch.setenv("HF_HUB_OFFLINE", "1")
        programs = stack.enter_context(warm_command(SCRIPTS / "sparse-serve"))
        yield Newcomer(tmp_path_factory.mktemp("newcomer"), str(encoder), programs)


def walk(newcomer: Newcomer, pages: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run the pages' commands; yield what was answered while the models are served, and measure them then."""
    all_commands = dict.fromkeys(command for page in pages for command in commands(page))
    asks = [command for command in all_commands if command.startswith(ASKS)]
    measures = [command for command in all_commands if " report" in command]
    for command in all_commands:
        if command not in (SERVE, *asks, *measures):
            newcomer.shell(command)
    with newcomer.serve():
        yield {command: newcomer.shell(command) for command in asks}
    for command in measures:
        newcomer.shell(command)


@pytest.fixture(scope="module")
def answers(newcomer: Newcomer) -> dict[str, str]:
    """What the README's models answered, by what asked them; by Python, what its language is."""
    walking = walk(newcomer, PAGES)
    told = next(walking)
    names = ("client", "stock", "library", "plain")
    for name, code in zip(names, blocks("python", "docs/clients"), strict=True):
        told[name] = newcomer.python(code)
    next(walking, None)
    return told


def test_commands_lead_to_answers_and_a_report(newcomer: Newcomer, answers: dict[str, str]) -> None:
    told = "\n".join(answers.values())
    assert len(re.findall(r"(positive|negative) +0\.\d+ +\d+ +A warm, funny", told)) == 2
    assert re.search(r"(POSITIVE|NEGATIVE) +0\.\d+ +\d+ +A warm, funny", told)
    assert len(re.findall(r'^{.*"label":"', told, re.MULTILINE)) == 2
    (file,) = (answer for command, answer in answers.items() if "--file" in command)
    assert file.count("\n") == 100
    assert re.fullmatch(r"(positive|negative) 0\.\d+\n", answers["client"])
    assert re.fullmatch(r"((positive|negative) 0\.\d+\n){2}", answers["library"])
    assert re.search(r"b?'0\.\d+:[01]:(positive|negative)'", answers["stock"])
    assert re.match(r"\[array\(\[\['(positive|negative)'\]\]", answers["plain"])
    for folder, files in {
        "report": {"report.csv", "report.html", "report.json"},
        "deployment": {"compose.yaml"},
        "manifests": {"kustomization.yaml"},
        "scored": {"job.json"},
    }.items():
        assert files <= {path.name for path in (newcomer.folder / folder).iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("answers")
def test_commands_of_other_models(newcomer: Newcomer) -> None:
    """Questions, entities, embeddings, several tasks, learned patterns; what the README left is there."""
    walking = walk(newcomer, OTHER_MODELS)
    told = "\n".join(next(walking).values())
    next(walking, None)
    assert re.search(r"(positive|negative) +0\.\d+ +\d+ +A warm, funny", told)
    assert "Mira Castell" in told
    assert re.search(r"answer +score", told)
    assert re.search(r"(person|date|number|thing) .*Who planned", told)
    assert "inspection.html" in {path.name for path in (newcomer.folder / "inspection").iterdir()}
    (load,) = blocks("python", "docs/attention")
    attends = "print(model.config._attn_implementation, type(model).__name__)"
    assert newcomer.python(f"{load}\n{attends}").split() == ["axis", "BertForSequenceClassification"]


def test_every_triton_release_that_is_known_is_listed() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d\d\.\d\d) \| ([\d.]+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert rows == [
        (each.name, each.onnxruntime, f"{each.opset}", f"{each.ir_version}") for each in RELEASES.values()
    ]


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)  # of a link its text
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def test_links_lead_somewhere() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in listed.stdout.splitlines()]
    assert ROOT / "README.md" in pages
    for page in pages:
        links = re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
        for path, anchor in links:
            target = page.parent / path if path else page
            assert target.exists(), f"{page.relative_to(ROOT)}: {path}"
            assert not anchor or anchor in anchors(target), f"{page.relative_to(ROOT)}: {path}#{anchor}"


def test_every_command_is_listed() -> None:
    help_text = subprocess.run(
        [SCRIPTS / "sparse-serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    commands = re.findall(r"^│ ([a-z]+) ", help_text, re.MULTILINE)
    assert commands
    for command in commands:
        assert re.search(rf"^\| `{command}[ `]", README, re.MULTILINE), (
            f"{command} is missing from the README"
        )
