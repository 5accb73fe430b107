"""The `sift` command in processes of its own: recipes, a comparison, its report, calculators."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fingerprints.digest import Result, of_run, short
from fingerprints.names import TIMED, public
from fingerprints.ranks import LIMIT, SCRIPT, torchrun
from sifting.checksums import Growing, digest_of

AT_ONCE = 2  # processes
THEN, BETWEEN = " --then ", "\x1e"  # between commands of one process, and what they print
NUMBER = re.compile(r"[−-]?\d[\d,]*\.?\d*(?:e-?\d+)?")

SMALL = "--layers 3 --hidden 16 --inner 16 --dev-share 0.3 --dev-sequences 16 --length 16"
PACE = "--batch 4 --updates 12 --evaluations 3 --audit-every 3 --workers 0"
BERT = f"bert smoke --data text --vocabulary-size 200 {SMALL} {PACE}"
GPT = f"gpt smoke --data text --vocabulary-size 400 {SMALL} {PACE}"
RESNET = "resnet smoke --side 8 --batch 20 --updates 8 --evaluations 2 --audit-every 3"
TRAIN: tuple[dict[str, str], ...] = (
    {
        "train bert baseline": f"{BERT} --arm baseline",
        "train bert sift": f"{BERT} --arm sift",
        "train bert default, warm-up": f"{BERT} --arm default --warmup 0.25 --seed 3",
        "train bert sift-entropy@2, two batches an update, clipped": (
            f"{BERT} --arm sift-entropy@2 --accumulate 2 --clip 0.5"
        ),
    },
    {
        "train gpt sift-mixed": f"{GPT} --arm sift-mixed",
        "train gpt memory-mixed, a worker": f"{GPT} --arm memory-mixed --workers 1",
        "train gpt llama tuned": f"{GPT} --arm tuned --shape llama",
    },
    {
        "train resnet sift": f"{RESNET} --arm sift",
        "train resnet random": f"{RESNET} --arm random --recalibrate 0",
        "train resnet tuned-entropy bf16": f"{RESNET} --arm tuned-entropy --autocast bf16",
    },
)
CUT = f"{GPT.replace('--updates 12', '--updates 60')} --arm default --keep-checkpoints 1"
RANKS = f"{RESNET} --arm default --scope global --recalibrate 0"
TARGET = "fingerprints.problem"
COMPARE = (
    f"{TARGET}:build --arms sift tuned memory-mixed {TARGET}:mapping {TARGET}:selector --seeds 0 1 2 "
    "--budget 48u --evaluations 4 --audit-every 3 --warmup 0.1 --set sift:lr=0.02"
)
PRINTED = {  # beside "theory estimate", of a run of the comparison
    "cost": "cost --exit 1 --length 512 --batch 32 --devices 8 --itemsize 2",
    "theory rho": "theory rho",
    "theory exit": "theory exit",
}
NOUNS = ["cat", "dog", "house", "river", "stone", "child", "teacher", "garden", "window", "letter"]
VERBS = ["sees", "finds", "likes", "leaves", "keeps", "hears", "takes", "builds"]


def results(wanted: Callable[[str], bool], only: str | None) -> Iterator[tuple[str, Result]]:
    """All settings of this file that are wanted; what starts together is run together."""
    groups: dict[tuple[str, ...], Callable[[Path], dict[str, Result]]] = {
        **{tuple(runs): lambda folder, runs=runs: train(folder, runs) for runs in TRAIN},
        ("train gpt stopped and resumed",): cut,
        ("train resnet on two ranks",): two_ranks,
        ("compare", "report", *PRINTED): compare,
    }
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(AT_ONCE) as pool:
        folder = Path(name)
        write_text(folder / "text")
        started = [
            pool.submit(group, folder)
            for names, group in groups.items()
            if any(wanted(f"commands/{key}") for key in names)
        ]
        for done in started:
            for key, result in done.result().items():
                yield f"commands/{key}", result


def write_text(folder: Path) -> None:
    """A corpus of sentences that differ from document to document."""
    folder.mkdir()
    for document in range(40):
        sentences = []
        for i in range(12):
            a, b = NOUNS[(document * 3 + i) % 10], NOUNS[(document * 7 + 2 * i + 1) % 10]
            verb = VERBS[(document + i) % 8]
            sentences.append(f"The {a} {verb} the {b} number {document * 100 + i}.")
        (folder / f"{document}.txt").write_text(" ".join(sentences), encoding="utf-8")


def start(folder: Path, *commands: str) -> subprocess.Popen[str]:
    """A process that runs commands one after the other, with a vocabulary made again."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "--sift", *THEN.join(commands).split()],
        env={**os.environ, "SIFT_CACHE": tempfile.mkdtemp(dir=folder)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sift(folder: Path, *commands: str) -> list[str]:
    """Run commands to their end, and give what each printed."""
    process = start(folder, *commands)
    out, errors = process.communicate(timeout=LIMIT)
    if process.returncode:
        raise SystemExit(f"sift {THEN.join(commands)} failed:\n{errors[-4000:]}{out[-1000:]}")
    return out.split(BETWEEN)


def main(arguments: list[str]) -> int:
    """In a process of its own: the commands, each from the same random streams."""
    from fingerprints.models import seed_all

    for place, command in enumerate(" ".join(arguments).split(THEN)):
        seed_all(0)  # Python's own stream, which states hold too, starts anywhere
        print(BETWEEN if place else "", end="", flush=True)
        code = int(public("main")(command.split()) or 0)
        if code:
            return code
    return 0


def final(folder: Path) -> dict[str, Any]:
    """The readable numbers of a run: the last ones in its log."""
    last: dict[str, Any] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        last |= {k: v for k, v in json.loads(line).items() if isinstance(v, float)}
    return {k: v for k, v in last.items() if not TIMED.fullmatch(k)}


def of_runs(folder: Path, *runs: Path) -> list[Result]:
    found = [of_run(folder / run) for run in runs]
    for run, result in zip(runs, found, strict=True):
        result["numbers"] |= final(folder / run)
    return found


def train(folder: Path, commands: dict[str, str]) -> dict[str, Result]:
    """Recipes, each a run folder."""
    folders = [Path(key.replace(" ", "-").replace(",", "")) for key in commands]
    given = zip(commands.values(), folders, strict=True)
    sift(folder, *(f"train {command} --out {out}" for command, out in given))
    return dict(zip(commands, of_runs(folder, *folders), strict=True))


def cut(folder: Path) -> dict[str, Result]:
    """A run that is told to stop after its first checkpoint; how far it got by then may vary."""
    process = start(folder, f"train {CUT} --out cut")
    deadline = time.monotonic() + LIMIT
    while not list((folder / "cut").rglob("*.pt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT)
    sift(folder, f"train {CUT} --out whole", f"train {CUT} --out cut --resume")
    found, whole = of_runs(folder, Path("cut"), Path("whole"))
    found["numbers"]["as if uncut"] = int(found["parts"] == whole["parts"])
    return {"train gpt stopped and resumed": found}


def two_ranks(folder: Path) -> dict[str, Result]:
    torchrun("--sift", "train", *RANKS.split(), "--out", "ranks", cwd=folder)
    return {"train resnet on two ranks": of_runs(folder, Path("ranks"))[0]}


def compare(folder: Path) -> dict[str, Result]:
    """A comparison: each of its runs, and the report on them once their clocks are set."""
    out = folder / "compared"
    sift(folder, f"compare {COMPARE} --out {out.name}")
    runs = sorted(path.parent.relative_to(out) for path in out.rglob("metrics.jsonl"))
    names = [f"compare {run}" for run in runs]
    found = dict(zip(names, of_runs(out, *runs), strict=True))
    # run.json, which has the checksums of the others, comes last
    paths = [*out.rglob("*.jsonl"), *out.rglob("*.json")]
    for path in sorted(paths, key=lambda path: path.name == "run.json"):
        set_clocks(path)
    audited = next(run for run in runs if run.parts[0] == "sift")
    commands = {**PRINTED, "theory estimate": f"theory estimate {out.name}/{audited}"}
    said = sift(folder, *commands.values(), f"report {out.name} -o report.md")
    found |= {key: printed(text) for key, text in zip(commands, said, strict=False)}
    verdict, *others = (folder / "report.md").read_text(encoding="utf-8").split("\n### ")
    tables = [section for section in others if "\n|" in section and "| torch |" not in section]
    found["report"] = {
        "parts": {"verdict": of_text(verdict), "tables": of_text("".join(tables))},
        "numbers": {"tables": len(tables)},
    }
    return found


def of_text(text: str) -> str:
    """A hash of the numbers in a text, in whatever order it has them."""
    return short(" ".join(sorted(NUMBER.findall(text))).encode())


def set_clocks(path: Path) -> None:
    """Put in place of measured times such as depend on nothing but their line."""
    content = path.read_text(encoding="utf-8")
    lines = content.splitlines() if path.suffix == ".jsonl" else [content]
    timed = bool(TIMED.fullmatch(path.stem))
    made = [_clocked(json.loads(line), i + 1, timed) for i, line in enumerate(lines)]
    if path.name == "run.json":
        made[0] |= {"files": _said(path.parent, made[0]["files"], "sha256")}
        made[0] |= {"logs": _said(path.parent, made[0]["logs"])}
    for content in made:
        if content.pop("checksum", None) is not None:
            content["checksum"] = digest_of(content)
    path.write_text("\n".join(map(json.dumps, made)) + "\n", encoding="utf-8")


def _said(folder: Path, files: dict[str, Any], only: str | None = None) -> dict[str, Any]:
    """What a run says of its files, of them as they are now."""
    found = {name: Growing() for name in files}
    for name, file in found.items():
        file.catch_up(folder / name)
    return {name: file.said()[only] if only else file.said() for name, file in found.items()}


def _clocked(value: Any, line: int, timed: bool) -> Any:
    if isinstance(value, dict):
        return {
            key: _clocked(member, line, timed or bool(TIMED.fullmatch(key)))
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [_clocked(member, line, timed) for member in value]
    return 0.5 * line if timed and isinstance(value, float) else value


def printed(text: str) -> Result:
    """What a calculator prints."""
    return {"parts": {"printed": of_text(text)}, "numbers": {"count": len(NUMBER.findall(text))}}
