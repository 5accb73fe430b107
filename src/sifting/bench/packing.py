"""A task's runs in one small file, and back: what was measured can be judged again, and added to.

A run under way is left out, and so are the audits of one that is over: nothing reads them here, and they
are most of it. Put back, a task goes on where it was: with more arms, more seeds, or one arm anew.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from sifting import checksums, files
from sifting.bench.running import ADVICE, NAME, check_task
from sifting.compare.manifest import NAME as COMPARISON
from sifting.training.run_folder import RunError, read_run

FORMAT = 1
FOLDER, SUFFIX = "runs", ".json.xz"  # of the results
OF_RUN = ("config.json", "environment.json", "reference.json", "summary.json", "metrics.jsonl")
ABOUT, ENVIRONMENT, AUDITS = "run.json", "environment.json", "audits.jsonl"
KNOWN = frozenset((NAME, ADVICE, COMPARISON, ABOUT, *OF_RUN))
PLACE = re.compile(r"[\w+=,.-]{1,200}", flags=re.ASCII)
DEEPEST, MOST_BYTES = 6, 1 << 28


def packed_path(results: Path, task: str) -> Path:
    """Where the runs of a task are, beside its results.

    >>> packed_path(Path("results"), "digits").as_posix()
    'results/runs/digits.json.xz'
    """
    return results / FOLDER / f"{task}{SUFFIX}"


def pack(folder: Path, results: Path) -> Path:
    """Write the runs of a task that are over into one file; returns it.

    Args:
        folder: of the task, in that of `sift bench`.
        results: folder of the results.
    """
    note = checksums.read_json(folder / NAME, required=False)
    check_task(folder / NAME, note, folder.name)
    text_by_path = {NAME: _text(folder / NAME)}
    if (folder / ADVICE).exists():
        text_by_path[ADVICE] = _text(folder / ADVICE)
    for path in sorted(folder.rglob(COMPARISON)):
        text_by_path[path.relative_to(folder).as_posix()] = _text(path)
        for run in sorted(path.parent.glob(f"*/seed-*/{ABOUT}")):
            if read_run(run.parent).status in ("finished", "failed"):
                inside = run.parent.relative_to(folder).as_posix()
                texts = _run(run.parent)
                text_by_path |= {f"{inside}/{name}": text for name, text in texts.items()}
    content = {"format": FORMAT, "task": folder.name, "files": text_by_path}
    content[checksums.NAME] = checksums.digest_of(content)
    out = packed_path(results, folder.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(out, lzma.compress(files.json_bytes(content), preset=9))
    return out


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is damaged: it is not text") from error


def _run(folder: Path) -> dict[str, str]:
    """The files of a run that is over, without its audits."""
    about = checksums.read_json(folder / ABOUT)
    found = {name: _text(folder / name) for name in OF_RUN if (folder / name).exists()}
    found[ENVIRONMENT] = without_places(found[ENVIRONMENT])
    about["files"] = {**about["files"], ENVIRONMENT: _digest(found[ENVIRONMENT])}
    about["logs"] = {**about["logs"], AUDITS: {"bytes": 0, "sha256": _digest("")}}
    about[checksums.NAME] = checksums.digest_of(about)
    return {ABOUT: files.json_bytes(about).decode(), **found}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def without_places(environment: str) -> str:
    """What a run says of its machine, its command without whole paths: whose folders they were is nobody's.

    >>> without_places('{"command": ["sift", "bench", "--out", "/home/me/runs"]}').split()
    ['{', '"command":', '[', '"sift",', '"bench",', '"--out",', '"runs"', ']', '}']
    """
    content = json.loads(environment)
    words = content.get("command") or []
    content["command"] = [
        PurePath(word).name if PurePath(word).is_absolute() else word for word in words
    ]
    return files.json_bytes(content).decode()


def unpack(path: Path, out: Path) -> Path:
    """Put the runs of a task back into a folder of `sift bench`; returns the task's.

    Args:
        path: that `pack` wrote.
        out: folder of all tasks.
    """
    content = _read(path)
    folder = out / str(content["task"])
    if folder.exists():
        raise RunError(f"{folder} is there already: move it away, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    part = out / f".{folder.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        for name, text in content["files"].items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            files.write_text(part / name, text)
        for run in part.rglob(ABOUT):
            read_run(run.parent)  # as it was written, or it names what is not
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _read(path: Path) -> dict[str, Any]:
    """What a packed file holds, each of its names a harmless one."""
    try:
        unpacker = lzma.LZMADecompressor()
        source = unpacker.decompress(path.read_bytes(), max_length=MOST_BYTES)
        if not unpacker.eof:
            raise RunError(
                f"{path} is damaged: it ends too soon, or holds more than {MOST_BYTES:,} bytes"
            )
        content = checksums.parse_object(source, path)
    except lzma.LZMAError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    except checksums.Damaged as error:
        raise RunError(str(error)) from error
    said = content.pop(checksums.NAME, None)
    if said != checksums.digest_of(content):
        raise RunError(f"{path} is not as it was written: its checksum differs")
    if content.get("format") != FORMAT:
        raise RunError(f"{path} has format {content.get('format')!r}; this release reads {FORMAT}")
    check_task(path, content, path.name.removesuffix(SUFFIX))
    _check_names(path, content.get("files"))
    return content


def _check_names(path: Path, found: Any) -> None:
    if not isinstance(found, Mapping) or NAME not in found:
        raise RunError(f"{path} is damaged: it holds no task")
    for name, text in found.items():
        parts = PurePosixPath(name).parts
        fine = parts and parts[-1] in KNOWN and len(parts) <= DEEPEST
        fine = fine and name == "/".join(parts) and isinstance(text, str)
        if not fine or any(set(part) <= {"."} or not PLACE.fullmatch(part) for part in parts):
            raise RunError(f"{path} is damaged: {json.dumps(name)[:80]} is no file of a task")
