"""The command line on pretended machines with GPUs: a scripted `nvidia-smi`, and a torch that is
built for CUDA as far as its file of versions says. Nothing starts on them.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections.run import RunConfig
from headrace.host.hardware import GIB, MIB, Gpu, Hardware
from headrace.run_files.run_folder import read_config
from headrace_cli.commands.checks.preflight import check_start
from headrace_cli.commands.run.train import prepare_run
from tests.integration.runs import REPOSITORY
from tests.scripted_driver import Card, answers, cuda_machine

EIGHT = {
    "cores": list(range(64)),
    "memory_bytes": 1024 * GIB,
    "available_bytes": 1000 * GIB,
    "gpus": [
        {"index": i, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 81559 * MIB} for i in range(8)
    ],
}


def call(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=REPOSITORY)


@pytest.mark.parametrize(
    ("cards", "facts", "visible", "overrides", "line"),
    [
        ([Card()], {}, "", [], "vLLM is built for CUDA, but there is no GPU: CUDA_VISIBLE_DEVICES"),
        ([], {}, None, ["learner.device=cuda"], "no GPU: nvidia-smi lists none"),
        ([Card()], {}, "0,1", [], "CUDA_VISIBLE_DEVICES = '0,1': '1' names none of 0"),
        ([Card()], {}, None, ["learner.ranks=2"], "two ranks cannot share one"),
        ([Card()], {}, None, ["generator.tensor_parallel_size=2"], "has 1 GPU(s)"),
        ([Card(free=9000)], {}, None, [], "not enough GPU memory: GPU 0 has 8.8 of 79.6 GiB free"),
        ([Card()], {"driver": "535.9", "cuda": "12.2"}, None, [], "535.9 knows CUDA up to 12.2"),
    ],
)
def test_a_run_that_cannot_be_is_one_line_and_exit_code_2(
    tmp_path: Path,
    recipe: Path,
    cards: list[Card],
    facts: dict[str, str],
    visible: str | None,
    overrides: list[str],
    line: str,
) -> None:
    env = cuda_machine(tmp_path / "machine", answers(cards, **facts))
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    runs = tmp_path / "runs"
    words = ["generator.engine=vllm", *overrides, "--root", str(runs)]
    done = call(env, "train", str(recipe), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not runs.exists()


def explained(env: dict[str, str], recipe: Path, *words: str) -> dict[str, Any]:
    done = call(env, "config", "explain", str(recipe), "--json", *words)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_explain_takes_another_machine_from_a_file(
    tmp_path: Path, recipe: Path, suffix: str
) -> None:
    """And names what is chosen there, and the GPUs that nobody would use."""
    machine = tmp_path / f"machine{suffix}"
    lines = [f"{key} = {json.dumps(value)}" for key, value in EIGHT.items() if key != "gpus"]
    for gpu in EIGHT["gpus"]:  # type: ignore[attr-defined]
        lines += ["[[gpus]]", *(f"{key} = {json.dumps(value)}" for key, value in gpu.items())]
    machine.write_text(json.dumps(EIGHT) if suffix == ".json" else "\n".join(lines))
    told = explained(dict(os.environ), recipe, "--hardware", str(machine))
    facts = told["facts"]
    assert (facts["generator.dtype"], facts["generator.max_num_seqs"]) == ("bfloat16", 256)
    assert facts["generator.enforce_eager"] is False
    assert (facts["learner.zero_stage"], facts["learner.precision"]) == (2, "bfloat16")
    assert facts["idle GPUs"] == "2, 3, 4, 5, 6, 7"
    here = explained(dict(os.environ), recipe)["facts"]
    assert (here["generator.dtype"], here["learner.zero_stage"]) == ("float32", 0)
    assert "idle GPUs" not in here


QWEN = {
    "qwen-gsm8k-gpu": (1_543_714_304, (1536, 8960, 12, 2, 151_936)),
    "qwen-7b-eight-gpus": (7_615_616_512, (3584, 18_944, 28, 4, 152_064)),
}
"""The models that recipes are for: parameters, and sizes as their config.json has them."""
SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
)  # fmt: skip


def published(folder: Path, recipe: str) -> Path:
    """The model of a recipe, with the header of its weights alone."""
    parameters, sizes = QWEN[recipe]
    folder.mkdir()
    shape = dict(zip(SIZES, sizes, strict=True)) | {"num_hidden_layers": 28}
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "tokenizer.json").write_text("{}")
    head = 0 if recipe == "qwen-gsm8k-gpu" else shape["vocab_size"] * shape["hidden_size"]
    sizes_of = {"model.weight": parameters - head, "lm_head.weight": head}
    tensors = {name: {"dtype": "BF16", "shape": [size]} for name, size in sizes_of.items() if size}
    header = json.dumps(tensors).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


@pytest.mark.parametrize(
    ("name", "cards", "overrides", "least", "most"),
    [
        ("qwen-gsm8k-gpu", 1, [], 45, 52),
        ("qwen-gsm8k-gpu", 1, ["learner.lora.rank=32"], 6, 8),
        ("qwen-7b-eight-gpus", 8, [], 60, 71),
    ],
)
def test_recipes_for_one_node_are_explained_and_fit(
    tmp_path: Path, name: str, cards: int, overrides: list[str], least: float, most: float
) -> None:
    """GiB of a learner rank on GPUs of 79.6, of which the recipes' comments speak."""
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps(EIGHT | {"gpus": EIGHT["gpus"][:cards]}))  # type: ignore[index]
    model = published(tmp_path / "model", name)
    done = call(
        dict(os.environ), "config", "explain", str(REPOSITORY / "recipes" / f"{name}.toml"),
        f"model.path={model}", *overrides, "--hardware", str(machine), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["problems"] == []
    facts = told["facts"]
    assert least < facts["GPU memory"] < most
    assert facts["memory"] < facts["memory free"]
    assert "idle GPUs" not in facts


@pytest.mark.parametrize("text", ["{", "[]", '{"cores": 3}', '{"cores": []}', '{"x": "\udcff"}'])
def test_a_file_that_describes_no_machine_is_one_line(
    tmp_path: Path, recipe: Path, text: str
) -> None:
    machine = tmp_path / "machine.json"
    machine.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = call(dict(os.environ), "config", "explain", str(recipe), "--hardware", str(machine))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --hardware {machine}: ")
    assert done.stderr.count("\n") == 1


def test_what_the_doctor_says_is_a_machine_for_explain(tmp_path: Path, recipe: Path) -> None:
    """Of a machine of two cards without peer access, one of them in use."""
    told = answers([Card(), Card(free=2000)], peers="CNS")
    told["--query-gpu=compute_cap --format=csv,noheader"] = "9.0\n9.0\n"
    env = cuda_machine(tmp_path / "machine", told)
    done = call(env, "doctor", "--json")
    said = json.loads(done.stdout)
    assert "Traceback" not in done.stderr
    levels = {finding["topic"]: finding["level"] for finding in said["findings"]}
    texts = {finding["topic"]: finding["text"] for finding in said["findings"]}
    assert texts["GPU 1"] == "NVIDIA H100 80GB HBM3, 2 of 80 GiB free"
    assert texts["GPU driver"] == "580.95.05 for CUDA 13.0, torch for 13.0"
    assert texts["peer access"].startswith("not for GPU0-GPU1 CNS: ranks may talk through /dev/shm")
    assert "FlashAttention, compute capability 9" in texts["vLLM's attention"]
    assert "spawned" in texts["vLLM's attention"]
    assert levels["GPU driver"] == levels["GPU 0"] == "ok"
    assert levels["NCCL"] == levels["peer access"] == "note"
    file = tmp_path / "hers.json"
    file.write_text(done.stdout)
    facts = explained(env, recipe, "--hardware", str(file))["facts"]
    assert facts["generator.gpu_memory_utilization"] == 0.9


@pytest.mark.parametrize(
    ("cards", "facts", "visible", "topic", "level", "text"),
    [
        ([Card()], {"driver": "535.9", "cuda": "12.2"}, None, "GPU driver", "bad", "; update it"),
        ([Card()], {}, "3", "GPU", "bad", "'3' names none of 0, or one twice"),
        ([], {}, None, "GPU", "note", "everything runs on the CPU: nvidia-smi lists none"),
        ([Card()], {}, None, "vLLM's attention", "note", "bfloat16 wants 8"),
    ],
)
def test_the_doctor_names_what_will_not_work(
    tmp_path: Path,
    cards: list[Card],
    facts: dict[str, str],
    visible: str | None,
    topic: str,
    level: str,
    text: str,
) -> None:
    told = answers(cards, **facts)
    told["--query-gpu=compute_cap --format=csv,noheader"] = "7.5\n"
    env = cuda_machine(tmp_path / "machine", told)
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    said = json.loads(call(env, "doctor", "--json").stdout)
    found = [f for f in said["findings"] if f["topic"] == topic]
    assert level in {finding["level"] for finding in found}
    assert any(text in finding["text"] for finding in found)


def prepared_on(recipe: str | None, resume: str | None, root: Path, gpus: int) -> RunConfig:
    """The configuration that `headrace train` writes down on a machine with so many GPUs."""
    cards = tuple(Gpu(index, "card", 80 * GIB) for index in range(gpus))
    machine = Hardware((0, 1), 64 * GIB, 64 * GIB, cards)
    asked = argparse.Namespace(recipe=recipe, resume=resume, root=str(root), overrides=[])
    run_dir, config = prepare_run(asked, lambda config: check_start(config, machine))
    assert read_config(run_dir) == config
    return config


def test_a_resumed_run_keeps_the_learners_values(tmp_path: Path, recipe: Path) -> None:
    """They are chosen once, for the machine on which the run begins; generators choose anew."""
    begun = prepared_on(str(recipe), None, tmp_path, gpus=2)
    learner = begun.learner
    assert (learner.precision, learner.zero_stage, learner.gradient_checkpointing) == (
        "bfloat16", 2, True,
    )  # fmt: skip
    assert (begun.generator.dtype, begun.generator.max_num_seqs) == ("auto", None)
    again = prepared_on(None, "latest", tmp_path, gpus=0)
    assert (again.learner, again.generator) == (begun.learner, begun.generator)


def test_a_stage_that_bfloat16_cannot_have_is_raised_and_said(
    tmp_path: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(recipe.read_text() + '[learner]\nprecision = "bfloat16"\nzero_stage = 1\n')
    assert prepared_on(str(recipe), None, tmp_path, gpus=0).learner.zero_stage == 2
    assert capsys.readouterr().err == (
        "learner.zero_stage = 2 (not 1: bfloat16 sums gradients in float32 from there on)\n"
    )


@pytest.mark.parametrize("cards", [[], [Card()]], ids=["no GPU", "one"])
def test_make_runs_the_gpu_tests_and_measures_on_a_gpu_alone(
    tmp_path: Path, cards: list[Card]
) -> None:
    """A model of half a billion parameters keeps a CPU busy for hours."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, line in (
        ("python", f'exec {sys.executable} "$@"'),
        ("pytest", 'echo tests "$@"'),
        ("headrace", 'echo measured "$@"'),
    ):
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    done = subprocess.run(
        ["make", "-o", "setup", "test-gpu", f"RUN={commands}"], cwd=REPOSITORY,
        env=cuda_machine(tmp_path / "machine", answers(cards)), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tests -q -rfEsp -m gpu" in done.stdout
    assert ("measured bench gpu" in done.stdout) is bool(cards)
    assert ("no GPU that torch can use" in done.stdout) is not bool(cards)
