"""What is installed by role: each does its work with its own packages, and says what brings the others."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sample_report import full_report
from tiny_entry import SAMPLE

from sparse_serve.extras import install_hint

# What is not of the role is not there. Runs command lines one after the other, and gives their statuses.
SCRIPT = """
import json, sys

class Role:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in {absent!r} else self.finder.find_spec(name, *more)

sys.meta_path[:] = map(Role, sys.meta_path)
{code}
from sparse_export.cli import app, run
for command_line in json.loads(sys.argv[1]):
    try:
        run(app, command_line)
    except SystemExit as end:
        print(end.code, end=" ", file=sys.stderr)
"""


def distributions(name: str, extras: frozenset[str]) -> Iterator[str]:
    """What is installed with a distribution."""
    yield canonicalize_name(name)
    try:
        needed = requires(name) or []
    except PackageNotFoundError:  # of another platform
        return
    for requirement in map(Requirement, needed):
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}
        ):
            yield from of_requirement(requirement.name, frozenset(requirement.extras))


@cache
def of_requirement(name: str, extras: frozenset[str]) -> frozenset[str]:
    return frozenset(distributions(name, extras))


def absent(*extras: str) -> set[str]:
    """Packages that are installed here, and would not be in an environment of these extras alone."""
    there = of_requirement("sparse-serve", frozenset(extras))
    return {
        package
        for package, owners in packages_distributions().items()
        if not there & {canonicalize_name(owner) for owner in owners}
    }


def run_as(
    extras: tuple[str, ...], *command_lines: list[str], code: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run command lines, after code, where nothing but these extras is installed."""
    script = SCRIPT.format(absent=absent(*extras), code=code)
    return subprocess.run(
        [sys.executable, "-c", script, json.dumps(command_lines)], capture_output=True, text=True, check=False
    )


def test_the_client_alone_asks_and_says_what_brings_the_rest() -> None:
    assert {"onnx", "onnxruntime", "plotly", "psutil", "sklearn", "tokenizers", "torch"} <= absent()
    commands = {
        "serve": "serve",
        "profile": "serve,report",
        "deploy": "cpu",
        "check": "cpu",
        "info": "cpu",
        "finetune": "export,cpu",
        "export": "export,cpu",
    }
    later = {
        "score": ("batch,cpu", ["name", "--input", "x.csv", "--output", "x"]),
        "inspect": ("export,cpu", ["x", "y"]),
        "report": ("entries", ["diff", "x", "y"]),
    }
    asked = run_as(
        (),
        ["classify", "sample", "a text", "--url", "127.0.0.1:9", "--retries", "0"],
        *([command, "x", "--an-option"] for command in commands),
        *([command, *options] for command, (_, options) in later.items()),
        ["--help"],
    )
    lines = asked.stderr.splitlines()
    assert lines[0].startswith("error: no answer from 127.0.0.1:9")
    needed = [*commands.values(), *(extras for extras, _ in later.values())]
    for line, extras in zip(lines[1:], needed, strict=False):
        assert line.startswith("1 error: ")
        assert line.endswith(install_hint(extras))
    assert lines[-1] == "1 0 "
    told = " ".join(asked.stdout.replace("│", "").split())
    assert "profile Not installed here; the extras serve,report of sparse-serve bring it." in told


def test_an_entry_answers_in_a_process_with_onnx_runtime_alone() -> None:
    answer = f"from sparse_serve import Classifier; Classifier({str(SAMPLE)!r})(['a fine film'])"
    asked = run_as(("cpu",), ["check", str(SAMPLE)], ["info"], code=answer)
    assert asked.stderr == "0 0 "
    asked = run_as((), code="from sparse_serve import Classifier")
    assert "Classifier needs " in asked.stderr
    hint = "pip install 'sparse-serve[cpu]' (in a clone: pip install --constraint constraints.txt '.[cpu]')"
    assert f"which is not installed: {hint}" in asked.stderr


def test_reports_are_read_without_what_measures_and_draws(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(full_report().to_json(), encoding="utf-8")
    show = ["report", "show", str(report)]
    asked = run_as(("entries",), show, ["report", "diff", str(report), str(report)])
    assert asked.stderr.endswith("0 0 ")
    asked = run_as(("entries",), [*show, "--output-dir", str(tmp_path / "page")])
    assert asked.stderr.startswith("error: report show --output-dir needs matplotlib")
    assert asked.stderr.endswith(f"{install_hint('report')}\n1 ")
    assert not (tmp_path / "page").exists()
    asked = run_as(("report",), [*show, "--output-dir", str(tmp_path / "page")])
    assert [line.split(" ")[0] for line in asked.stderr.splitlines()] == ["wrote", "wrote", "wrote", "0"]
    assert (tmp_path / "page" / "report.html").is_file()


@pytest.mark.parametrize(
    ("extras", "modules"),
    [
        (("serve",), ("triton.launcher", "triton.container", "deploy.compose", "deploy.gateway")),
        (("serve", "report"), ("profiling.profile", "report.page", "cli.profile")),
        (("batch", "cpu"), ("scoring.job", "scoring.engine")),
    ],
    ids=" ".join,
)
def test_a_role_has_what_its_modules_import(extras: tuple[str, ...], modules: tuple[str, ...]) -> None:
    imports = "; ".join(f"import sparse_serve.{module}" for module in modules)
    assert run_as(extras, code=imports).stderr == ""


def test_the_model_side_imports_without_the_server() -> None:
    assert "nvidia-pytriton" not in of_requirement("sparse-serve", frozenset(("export", "cpu")))
    imports = "import sparse_export, sparse_export.entry, sparse_export.training.job"
    assert run_as(("export", "cpu"), code=imports).stderr == ""
