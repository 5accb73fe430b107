"""Every example of the page is a file that works as the page says, without further code."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.cli import main as sift
from sifting.training.engine import Engine
from sifting.training.problem import Pace, Task
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers.comparisons import measure_briefly
from tests.helpers.pages import DOCS, importable, module, titled_blocks, write_blocks
from tests.helpers.processes import run_ranks

PAGE = DOCS / "extending.md"
SCRIPTS = Path(__file__).parent / "scripts"
KINDS = ("score", "policy", "exit", "recipe", "trainer integration", "logger")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the page's files, which can be imported."""
    write_blocks(PAGE, tmp_path)
    with importable(tmp_path):
        yield tmp_path


def make_model() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(nn.Linear(8, 16), *blocks, nn.Linear(16, 4))


def make_data(size: int = 256) -> TensorDataset:
    x = torch.randn(size, 8, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


def make_loader() -> DataLoader[Any]:
    return DataLoader(make_data(), batch_size=16, shuffle=True)


def test_every_place_to_extend_has_a_section_and_a_file() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind in KINDS:
        article = "An" if kind[0] in "aeiou" else "A"
        section = text.partition(f"\n## {article} {kind}\n")[2].partition("\n## ")[0]
        assert 'python title="' in section, f"no example of a {kind}"


def test_what_the_page_says_of_exits_is_the_whole_protocol() -> None:
    from sifting.exits.base import Exit

    text = PAGE.read_text(encoding="utf-8")
    public = {name for name in vars(Exit) if not name.startswith("_")}
    assert [name for name in sorted(public) if not re.search(rf"`{name}\b", text)] == []


def test_score(folder: Path) -> None:
    focal = module("focal").focal
    x, y = make_data()[:32]
    model = make_model()
    found = Sifter(model, exit="last", score=focal).score((x, y))
    p = model(x).softmax(-1)[torch.arange(32), y]
    torch.testing.assert_close(found, ((1 - p) ** 2 * -p.log()).detach())


def test_score_at_every_position(folder: Path) -> None:
    """A language model: rows are averaged over each sample's labelled positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    focal = module("focal").focal
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40)).eval()
    ids = torch.randint(0, 40, (4, 7))
    found = Sifter(model, exit="last", score=focal).score({"input_ids": ids, "labels": ids})
    logits = model(ids).logits[:, :-1].detach()
    rows = focal(logits.reshape(-1, 40), ids[:, 1:].reshape(-1)).reshape(4, 6)
    torch.testing.assert_close(found, rows.mean(dim=1), rtol=1e-4, atol=1e-5)


def test_policy(folder: Path) -> None:
    band = module("band").Band
    scores = torch.arange(40.0).flip(0)
    drawn = band(skip=0.25).draw(scores, 10, torch.Generator().manual_seed(0))
    places = drawn.places_K.tolist()
    assert len(set(places)) == 10
    assert set(places) <= set(range(10, 30))
    sifter = Sifter(make_model(), exit="last", score="loss", policy=band(skip=0.25))
    made = sifter.select(tuple(make_data()[:40]))
    ranks = made.scores.argsort(descending=True).argsort()[made.indices]
    assert len(made.indices) == 20
    assert ranks.min() >= 10
    assert sifter.settings()["policy"] == "band"
    with pytest.raises(ValueError, match=r"skip=2 is not in \[0, 1\)"):
        band(skip=2)


def test_exit_learns(folder: Path) -> None:
    probe = module("probe").Probe("1")
    model = make_model()
    sifter = Sifter(model, exit=probe, audit_every=0)
    assert sifter.settings()["score"] == "loss"
    assert sifter.settings()["explore"] == 0.25
    everything = tuple(make_data()[:])
    before = sifter.score(everything).mean()
    weights = [p.clone() for p in model.parameters()]
    for _ in range(60):
        sifter.select(everything)
    after = sifter.score(everything).mean()
    assert before == pytest.approx(torch.log(torch.tensor(4.0)).item())
    assert after < 0.8 * before
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_exit_refuses_what_it_cannot_do(folder: Path) -> None:
    probe = module("probe").Probe
    with pytest.raises(ValueError, match="at='nowhere' is no module of the model"):
        Sifter(make_model(), exit=probe("nowhere"))
    with pytest.raises(ValueError, match="a Probe scores by loss"):
        Sifter(make_model(), exit=probe("1"), score=lambda logits, labels: logits[:, 0])
    with pytest.raises(ValueError, match="of another exit, not a Probe's"):
        probe("1").load_state_dict({"logits": 1})


def test_exit_on_two_ranks_is_averaged_and_resumes(folder: Path) -> None:
    done = run_ranks([SCRIPTS / "probe_on_ranks.py", folder])
    assert done.returncode == 0, done.stderr
    assert "averaged, alike, resumed" in done.stdout


@pytest.mark.parametrize("arm", ["baseline", "sift"])
@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_recipe(folder: Path, arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = re.findall(r"^sift (train rings:RECIPE .*)$", PAGE.read_text("utf-8"), re.M)[0].split()
    words[words.index("sift")] = arm
    assert sift.main([*words, "--updates", "150", "--evaluations", "2"]) == 0
    run = read_run(Path("runs/rings"))
    assert run.config["recipe"] == "rings"
    assert run.config["noise"] == 0.2
    assert run.summary is not None
    if arm == "baseline":
        assert run.summary["final"]["accuracy"] > 0.6  # a third by chance
    last = [record for record in run.metrics if record["kind"] == "train"][-1]
    assert last["samples_trained"] == 150 * run.config["batch"]
    assert last["candidates_seen"] == (1 if arm == "baseline" else 2) * last["samples_trained"]
    recipe = module("rings").RECIPE
    small = recipe.presets["small"]
    assert recipe.updates(small, recipe.read(small)) == 384


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_recipe_is_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)
    monkeypatch.chdir(folder)
    words = re.findall(r"^sift (compare rings:.*)$", PAGE.read_text("utf-8"), re.M)[0].split()
    words[words.index("baseline:300u")] = "baseline:24u"  # as on the page, but short
    # by the processor's time: a budget of the time that passes may not do on a machine that is busy
    assert sift.main([*words, "--evaluations", "2", "--clock", "cpu"]) == 0
    assert Path("runs/compare/comparison.json").exists()


def make_trainer(name: str, cls: str, **sift: Any) -> Any:
    model = make_model()
    torch.manual_seed(5)  # of the order
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return getattr(module(name), cls)(model, optimizer, make_loader(), **sift)


def losses(trainer: Any) -> list[float]:
    return [record["loss"] for record in trainer.log]


def test_trainer_integration_keeps_everything_as_the_plain_trainer(folder: Path) -> None:
    plain = make_trainer("small_trainer", "SmallTrainer")
    plain.fit(40)  # two epochs and a half
    sifted = make_trainer("sift_small_trainer", "SiftSmallTrainer", keep=1.0)
    sifted.fit(40)
    assert losses(sifted) == losses(plain)


@pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")
def test_trainer_integration_resumes(folder: Path) -> None:
    settings = {"exit": 1, "score": "loss", "keep": 0.5}
    whole = make_trainer("sift_small_trainer", "SiftSmallTrainer", **settings)
    whole.fit(16)
    assert whole.log[-1]["sifting/samples_trained"] == 256
    assert whole.log[-1]["sifting/candidates_seen"] == 512
    first = make_trainer("sift_small_trainer", "SiftSmallTrainer", **settings)
    first.fit(7)
    torch.save(first.state_dict(), folder / "state.pt")
    second = make_trainer("sift_small_trainer", "SiftSmallTrainer", **settings)
    second.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    second.fit(16)
    assert losses(first) + losses(second) == losses(whole)


def test_logger(folder: Path) -> None:
    path, model = folder / "log.csv", make_model()
    watch = module("csv_logger").to_csv(path)
    task = Task(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loader=make_loader(),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: {"accuracy": 0.5},
    )
    pace = Pace(updates=10, log_every=5, evaluate_every=10)
    out = RunFolder.create(folder / "run", config={"recipe": "mine"})
    Engine(task, Sifter(model, keep=1.0), pace, out, watch=watch).run()
    lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert ["10", "eval/accuracy", "0.5"] in lines
    logged = [float(value) for _, name, value in lines if name == "train/loss"]
    records = [r for r in read_run(folder / "run").metrics if r["kind"] == "train"]
    assert logged == [record["loss"] for record in records] != []


def test_files_of_the_page_are_sound() -> None:
    for title, code in titled_blocks(PAGE).items():
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--stdin-filename", title, "-"],
            input=code,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{title}: {done.stdout}{done.stderr}"
