"""Hostile run folders through the report: no traceback, no script, no foreign file, and in time.

    python -m tests.report.fuzz --cases 10000 --first 0 --out FOLDER    # continues where it was stopped

Each case is made from its seed alone, so that one that fails can be made again. Prints how many cases
there were, and how long the slowest took.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from sifting.files import write_json
from sifting.report import NothingToReport, collect, write_html, write_markdown
from tests.helpers.run_folders import made, seal, write

SECRET = "what-no-page-may-show"
SECONDS = 2.0  # of processor time for a case
MARKDOWN_EVERY = 100  # cases: its PNG files take forty times as long to draw as a page
REMEMBERED_EVERY = 20  # cases after which it is written down how far it is
FILES = ("run.json", "config.json", "environment.json", "metrics.jsonl", "summary.json")
TEXTS = [
    "<script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '"onmouseover="alert(1)',
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{",
    "\x1b[2J\x1b]0;x\x07",
    "\u202egnp.exe",
    "mine:tent:",
    "|a|b|\n| - |",
    "`x` ``",
    "",
    " ",
    "\ud800",
    "学習 🏕 é",
    "x" * 5000,
    "baseline",
    "random-keep",
    "../../etc/passwd",
    "&lt;b&gt;",
    "]]><!--",
    '#010101 url(#x) id="y"',
]
NUMBERS: list[Any] = [
    *(0, 1, -1, 3, 0.5, 1e-300, 1e300, -1e300, 1e15, 1e16, 2**63, 10**400, 1e99),
    *(float("nan"), float("inf"), float("-inf"), True, None),
]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can hold."""
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind <= 1:
        return rng.choice(TEXTS)
    if kind <= 4:
        return rng.choice(NUMBERS)
    if kind == 5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def place(rng: random.Random, content: Any) -> tuple[Any, Any]:
    """A random place inside some JSON: what holds it, and its key there."""
    while True:
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = rng.choice(list(keys))
        inner = content[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.4:
            return content, key
        content = inner


def spoil(rng: random.Random, path: Path, outside: Path) -> None:
    """Damage one file of a run."""
    file = path / rng.choice(FILES)
    if file.is_symlink() or file.is_dir():
        return
    if not file.exists():
        file.write_text("{}")
    source = file.read_bytes()
    how = rng.randrange(9)
    if how == 0:
        file.write_bytes(source[: rng.randrange(len(source) + 1)])
    elif how == 1 and source:
        at = rng.randrange(len(source))
        file.write_bytes(source[:at] + bytes([rng.randrange(256)]) + source[at + 1 :])
    elif how == 2:
        file.unlink()
        file.symlink_to(outside / file.name)
    elif how == 3:
        file.unlink()
        (file.mkdir if rng.random() < 0.5 else lambda: file.symlink_to(file.name))()
    elif how == 4:
        file.write_text(json.dumps(value(rng)))
    else:
        lines = source.decode(errors="replace").splitlines() or [""]
        at = rng.randrange(len(lines))
        try:
            content = json.loads(lines[at])
            for _ in range(rng.randrange(1, 4)):
                holder, key = place(rng, content)
                if rng.random() < 0.2 and isinstance(holder, dict):
                    del holder[key]
                else:
                    holder[key] = value(rng)
            lines[at] = json.dumps(content)
        except (ValueError, IndexError, TypeError):
            lines[at] = rng.choice(TEXTS)
        file.write_text("\n".join(lines) + "\n", errors="replace")


def decision(rng: random.Random, step: int) -> dict[str, Any]:
    """A record of an autopilot, with a value or two that no autopilot has."""
    known = {"scorer": "past", "ratio": 2, "share": 0.8, "kept_loss": 0.9, "agreement": 1.1}
    record: dict[str, Any] = {
        "kind": "decision",
        "step": step,
        "ratio": rng.choice([1, 2, 4]),
        "scorer": "past",
        "changed": rng.random() < 0.5,
        "why": rng.choice(TEXTS),
        "judged": [known],
    }
    if rng.random() < 0.3:
        record |= {"kind": "trial", "difference": 0.1, "error": 0.05, "harms": rng.random() < 0.5}
    for _ in range(rng.choice([0, 0, 1, 2])):
        holder, key = place(rng, record)
        if key != "kind":
            holder[key] = rng.choice(NUMBERS) if rng.random() < 0.7 else value(rng)
    return record


def build(seed: int, folder: Path) -> Path:
    """A folder of runs, most of them sound, some hostile."""
    rng = random.Random(seed)
    outside, runs = folder / "outside", folder / "runs"
    secret = write(replace(made(SECRET, 0, points=2, note=SECRET), path=Path("secret")), outside)
    runs.mkdir()
    arms = ["baseline", "random-keep", "sift", *rng.sample(TEXTS, 2)][: rng.randrange(1, 6)]
    for number, arm in enumerate(arms):
        for s in range(rng.choice([1, 3, 3])):
            run = made(
                *(arm, s),
                speed=rng.choice([1.0, 1.0, 1.3]),
                noise=0.02,
                points=rng.choice([1, 3, 6]),
                reference=rng.random() < 0.5,
                status=rng.choice(["finished", "finished", "running", "failed", "\x1b[2J"]),
                recipe=rng.choice(["made", "made", rng.choice(TEXTS)]),
            )
            if rng.random() < 0.3:
                run = replace(run, config={**run.config, rng.choice(TEXTS): value(rng)})
            if rng.random() < 0.3:
                run.summary["warnings"] = value(rng)  # type: ignore[index]
            if rng.random() < 0.3:
                for at in range(rng.choice([1, 5, 20])):
                    run.metrics.append(decision(rng, 10 * at))  # type: ignore[attr-defined]
            name = f"{number}-{s} {rng.choice(['<b>', 'x:tent:', chr(27), ''])}"
            path = write(replace(run, path=Path(name)), runs)
            for _ in range(rng.choice([0, 0, 1, 1, 3])):
                spoil(rng, path, secret)
            if rng.random() < 0.1:
                (path / "reference.json").write_text(json.dumps(value(rng)))
            if rng.random() < 0.5:  # whoever writes a hostile run can make its checksums too
                seal(path)
    if rng.random() < 0.2:
        (runs / "door").symlink_to(secret)
    return runs


class Elements(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        for name, content in attrs:
            assert not (name in ("href", "src", "xlink:href") and not str(content).startswith("#"))


def check(seed: int, *, seconds: float = SECONDS) -> float:
    """Send one case through the report; returns the seconds of processor time that it took."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        runs = build(seed, folder)
        start, taken = time.process_time(), 0.0
        out = folder / "out"
        out.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # of numpy, on what is no number
            try:
                material = collect([runs])
            except NothingToReport as nothing:
                said = str(nothing)
            else:
                write_html(material, out / "report.html")
                said = (out / "report.html").read_text(encoding="utf-8")
                taken = time.process_time() - start
                _check_page(said)
                if seed % MARKDOWN_EVERY == 0:
                    write_markdown(material, out / "report.md")
                    said += (out / "report.md").read_text(encoding="utf-8")
        assert "unexpected" not in said, said[said.index("unexpected") :][:300]
        assert SECRET not in said, "a foreign file"
        assert taken < seconds, f"{taken:.1f} s"
        return taken
    finally:
        shutil.rmtree(folder)


def _check_page(source: str) -> None:
    found = Elements(source)
    assert not found.tags & {"script", "img", "iframe", "object", "link", "embed", "form", "base"}
    assert not {name for name in found.attributes if name.startswith("on")}
    assert "\x1b" not in source


def main() -> None:
    """Run many cases, from where an earlier start was stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--out", type=Path, help="folder that remembers what is done")
    args = parser.parse_args()
    last = args.first + args.cases
    done: dict[str, Any] = {"next": args.first, "failed": [], "slowest": 0.0}
    path = None if args.out is None else args.out / f"hostile-{args.first}.json"
    if path is not None and path.exists():
        done = json.loads(path.read_text())
    for seed in range(done["next"], last):
        try:
            done["slowest"] = max(done["slowest"], check(seed))
        except Exception as error:
            done["failed"].append(seed)
            print(f"case {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        done["next"] = seed + 1
        if path is not None and (done["next"] % REMEMBERED_EVERY == 0 or done["next"] == last):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, done)
        if seed % 100 == 99:
            print(f"up to {seed}: {_told(done)}", flush=True)
    print(f"{done['next'] - args.first} cases from {args.first}: {_told(done)}")
    raise SystemExit(bool(done["failed"]))


def _told(done: dict[str, Any]) -> str:
    return f"{len(done['failed'])} failed, slowest {done['slowest']:.2f} s of processor time"


if __name__ == "__main__":
    main()
