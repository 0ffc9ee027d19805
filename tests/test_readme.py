"""The README's commands, run in its order as a newcomer would: on fewer rows, layers and lengths."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from few_layers import few_layers
from warm_command import warm_command

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = ("From a checkpoint to an answer", "What it saves")
OTHER_TASKS = "Questions, entities, embeddings"
SEVERAL_TASKS = "Several tasks on one model"
PATTERNS = "Attention patterns"
FROM_PYTHON = "From Python"
# What makes the way short enough for a test; the commands stay the README's.
SHORTER = {
    "--lengths 64,128,256,512": "--lengths 16",
    "--measurement-interval 1000": "--measurement-interval 100",
    "--epochs 5 --learning-rate 5e-5": "--epochs 2 --learning-rate 5e-5",
    "--epochs 6 --learning-rate 5e-5": "--epochs 2 --learning-rate 5e-5",
    "--epochs 8 --batch-size 4": "--epochs 1 --batch-size 8",
    "--epochs 4 --batch-size 8": "--epochs 1 --batch-size 8",
    "--epochs 4 --learning-rate 5e-5": "--epochs 1 --learning-rate 5e-5",
}
SERVE = "sparse-serve serve model_repository"


def blocks(language: str, titles: tuple[str, ...] = SECTIONS) -> list[str]:
    """Fenced blocks of the sections that lead from a checkpoint to an answer, or of others, in order."""
    sections = re.split(r"^## ", README, flags=re.MULTILINE)
    chosen = [text for title in titles for text in sections if text.startswith(f"{title}\n")]
    assert len(chosen) == len(titles)
    return [code for text in chosen for code in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)]


def free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


class Newcomer:
    """A shell in a fresh folder with the demo's reviews, an encoder, and ports of its own."""

    def __init__(self, folder: Path, encoder: str, programs: Path) -> None:
        shutil.copytree(ROOT / "demo", folder / "demo")
        self.folder = folder
        self.http_port, grpc_port, metrics_port = free_ports()
        self.environment = os.environ | {
            "PATH": f"{programs}:{SCRIPTS}:{os.environ['PATH']}",
            "ENCODER": encoder,
            "SPARSE_SERVE_MAX_TRAIN_ROWS": "48",
            "SPARSE_SERVE_MAX_EVAL_ROWS": "24",
            "SPARSE_SERVE_MAX_LENGTH": "64",
            "SPARSE_SERVE_VARIANTS": "model,padded_eager",
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
    with warm_command(SCRIPTS / "sparse-serve") as programs:
        yield Newcomer(tmp_path_factory.mktemp("newcomer"), str(encoder), programs)


def test_commands_lead_to_an_answer_and_a_report(newcomer: Newcomer) -> None:
    commands = blocks("bash")
    served = next(number for number, code in enumerate(commands) if code.strip() == SERVE)
    make_others, ask_others = blocks("bash", (OTHER_TASKS,))
    make_several, ask_several = blocks("bash", (SEVERAL_TASKS,))
    for code in (*commands[:served], make_others, make_several):
        newcomer.shell(code)
    serving = newcomer.serve()
    next(serving)
    answered = [newcomer.shell(code) for code in commands[served + 1 :] if "profile" not in code]
    stock, library, plain = (newcomer.python(code) for code in blocks("python"))
    others = newcomer.shell(ask_others)
    several = newcomer.shell(ask_several)
    next(serving, None)
    assert len(answered) == 3
    assert re.search(r"(positive|negative) +0\.\d+ +12 +A warm, funny", answered[0])
    assert '"label":' in answered[1]
    assert re.match(r"\d+ rows in scored, 1 part\n", answered[2])
    assert re.fullmatch(r"((positive|negative) 0\.\d+\n){2}", library)
    assert re.search(r"b?'0\.\d+:[01]:(positive|negative)'", stock)
    assert re.match(r"\[array\(\[\['(positive|negative)'\]\]", plain)

    assert re.search(r"answer +score", others)
    assert "Mira Castell" in others
    assert re.search(r"(positive|negative) .* warm, funny", several)
    assert re.search(r"(person|date|number|thing) .*Who planned", several)

    profiles = [code for code in commands if "profile" in code]
    assert len(profiles) == 1
    newcomer.shell(profiles[0])
    assert {path.name for path in (newcomer.folder / "report").iterdir()} == {
        "report.csv",
        "report.html",
        "report.json",
    }


def test_a_pattern_is_learned_and_exported(newcomer: Newcomer) -> None:
    (commands,) = blocks("bash", (PATTERNS,))
    newcomer.shell(commands)
    assert (newcomer.folder / "model_repository" / "reviews_aaa" / "manifest.json").is_file()
    (load,) = blocks("python", (FROM_PYTHON,))
    attends = "print(model.config._attn_implementation, type(model).__name__)"
    assert newcomer.python(f"{load}\n{attends}").split() == ["axis", "BertForSequenceClassification"]


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
