"""The loader snippets of the pages run as they stand there: a diff with its added lines, and without."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from sifting.checkpoint import Portable
from sifting.integrations.trainer import SiftMixin
from sifting.training.engine import Engine, Pace, Task
from sifting.training.run_writer import RunFolder
from tests.docs.scripts import many_devices
from tests.helpers.documents import TokenModel, documents, padded
from tests.helpers.pages import DOCS, snippet
from tests.helpers.problems import build
from tests.helpers.processes import run_ranks
from tests.helpers.trainer_models import Texts, classifier

QUIET = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}


def texts() -> list[dict[str, Any]]:
    return [{k: v for k, v in sample.items() if k != "unused"} for sample in Texts(32)]  # type: ignore[attr-defined]


def counted(optimizer: torch.optim.Optimizer) -> list[int]:
    """Grows by one with each update."""
    updates: list[int] = []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    return updates


def loop() -> tuple[dict[str, Any], list[int]]:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    names = {"model": model, "optimizer": optimizer, "Sifter": Sifter, "MemoryExit": MemoryExit}
    names["loader"] = DataLoader(texts(), batch_size=8, shuffle=True)  # type: ignore[arg-type]
    return names, counted(optimizer)


@pytest.mark.parametrize("line", [True, False])
def test_the_first_page(line: bool) -> None:
    names, updates = loop()
    names |= {"held_out_batches": list(names["loader"]), "epochs": 1}
    exec(snippet("index.md", "```diff", line=line), names)
    assert len(updates) == 4
    assert ("sifter" in names) == line


def test_what_is_imported_is_there() -> None:
    names: dict[str, Any] = {}
    exec(snippet("api.md", "```python"), names)
    assert names["Sifter"] is Sifter
    assert names["MemoryExit"] is MemoryExit


def test_ids_of_a_stream() -> None:
    names, _ = loop()
    batches = list(DataLoader([{**s, "index": i} for i, s in enumerate(texts())], 8))  # type: ignore[arg-type]
    names["stream"] = batches
    exec(snippet("api.md", "## Batches"), names)
    stats = names["sifter"].stats()
    assert (stats.steps, stats.samples_trained) == (4, 32)


@pytest.mark.parametrize("line", [True, False])
def test_accelerate(line: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    names, updates = loop()
    names |= {"accelerator": accelerate.Accelerator(cpu=True), "Portable": Portable}
    exec(snippet("integrations.md", "## Accelerate", line=line), names)
    assert len(updates) == 4


@pytest.mark.parametrize("line", [True, False])
def test_plain_pytorch(line: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    updates = counted(optimizer)
    data = [(torch.randn(4), i % 3) for i in range(32)]
    names = {"model": model, "optimizer": optimizer, "Sifter": Sifter, "torch": torch, "F": F}
    names |= {"loader": DataLoader(data, 8), "scaler": torch.amp.GradScaler("cpu", enabled=False)}  # type: ignore[arg-type]
    code = snippet("integrations.md", "## Plain PyTorch", line=line)
    assert code.count('"cuda"') == 1
    code = code.replace("model = torch.compile(model)", "").replace('"cuda"', '"cpu"')
    exec(code, names)
    assert len(updates) == 4


def trainer_names(folder: Path) -> dict[str, Any]:
    """What the Trainer's snippets take as given; a run of theirs is one epoch, and prints nothing."""
    arguments = functools.partial(hf.TrainingArguments, num_train_epochs=1, **QUIET)
    names: dict[str, Any] = {"model": classifier(), "dataset": texts()}
    names["TrainingArguments"] = lambda _, **given: arguments(str(folder), **given)
    return names


@pytest.mark.parametrize("line", [True, False])
def test_the_trainer(line: bool, tmp_path: Path) -> None:
    names = trainer_names(tmp_path)
    exec(snippet("integrations.md", "## Hugging Face Trainer", line=line), names)
    assert names["trainer"].state.global_step == 1  # 32 samples, of which a step trains 32
    assert hasattr(names["trainer"], "sifter") == line


@pytest.mark.parametrize("line", [True, False])
def test_a_trainer_of_ones_own(line: bool, tmp_path: Path) -> None:
    names = {**trainer_names(tmp_path), "Trainer": hf.Trainer, "SiftMixin": SiftMixin}
    exec(snippet("integrations.md", "A Trainer of your own takes the mixin", line=line), names)
    sift = {"sift": {"exit": 1, "score": "loss", "keep": 0.5}} if line else {}
    args = names["TrainingArguments"]("out", per_device_train_batch_size=8)
    trainer = names["MyTrainer"](
        model=names["model"], args=args, train_dataset=names["dataset"], **sift
    )
    trainer.train()
    assert trainer.state.global_step == 4
    assert not line or trainer.sifter.stats().candidates_seen == 64


@pytest.mark.filterwarnings("default")  # of TRL and datasets, not ours
@pytest.mark.parametrize("line", [True, False])
def test_trl(line: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl", reason="TRL needs Python 3.11")
    peft = pytest.importorskip("peft")
    from tests.helpers.trl_sft import data, llama, tokenizer

    # a model of the Hub brings its tokenizer
    monkeypatch.setattr(hf.AutoProcessor, "from_pretrained", lambda *_, **__: tokenizer())
    names: dict[str, Any] = {"model": llama(layers=5), "dataset": data(32)}
    config = functools.partial(trl.SFTConfig, num_train_epochs=1, bf16=False, **QUIET)
    names["SFTConfig"] = lambda _, **given: config(str(tmp_path), **given)
    names["LoraConfig"] = functools.partial(peft.LoraConfig, target_modules=["q_proj"])
    exec(snippet("integrations.md", "## TRL", line=line), names)
    names["trainer"].train()
    assert names["trainer"].state.global_step == 4
    assert not line or names["trainer"].sifter.stats().candidates_seen == 64


@pytest.mark.filterwarnings("default")  # of TRL and datasets, not ours
@pytest.mark.parametrize("line", [True, False])
def test_preferences(line: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl", reason="TRL needs Python 3.11")
    from tests.helpers.trl_pairs import pairs
    from tests.helpers.trl_sft import llama, tokenizer

    monkeypatch.setattr(hf.AutoProcessor, "from_pretrained", lambda *_, **__: tokenizer())
    model = llama(layers=5)
    model.save_pretrained(tmp_path / "model")  # where the trainer finds the reference
    model.config._name_or_path = str(tmp_path / "model")
    names: dict[str, Any] = {"model": model, "dataset": pairs(32)}
    config = functools.partial(trl.DPOConfig, num_train_epochs=1, bf16=False, **QUIET)
    names["DPOConfig"] = lambda _, **given: config(str(tmp_path), **given)
    exec(snippet("integrations.md", "### Preferences", line=line), names)
    names["trainer"].train()
    assert names["trainer"].state.global_step == 4
    assert not line or names["trainer"].sifter.stats().candidates_seen == 64


def test_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trained after a cut is what would have been, where the loop's body trains."""
    monkeypatch.chdir(tmp_path)
    body = "model(**batch).loss.backward(); optimizer.step(); optimizer.zero_grad()"
    code = snippet("how-it-works.md", "## Resuming").replace("...", body)
    assert body in code

    def begun() -> dict[str, Any]:
        torch.manual_seed(7)
        names, _ = loop()
        return names | {"torch": torch, "sifter": Sifter(names["model"], exit=1, keep=0.5)}

    names = begun()
    for number, batch in enumerate(names["sifter"](names["loader"])):
        names["batch"] = batch
        exec(body, names)
        if number == 1:
            parts = ("model", "optimizer", "sifter")
            state = {part: names[part].state_dict() for part in parts}
            torch.save({**state, "rng": torch.get_rng_state()}, "checkpoint.pt")
    again = begun()
    exec(code, again)
    assert again["sifter"].step == 4
    for one, other in zip(names["model"].parameters(), again["model"].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("section", ["`tokens=`", "## A budget in tokens"])
def test_documents_are_scored_and_paid_for_by_their_tokens(section: str) -> None:
    names: dict[str, Any] = {"Sifter": Sifter, "model": TokenModel()}
    exec(snippet("documents.md", section), names)
    batch = padded(documents([3, 9, 4, 12, 7, 5, 8, 6] * 2))
    assert 0 < len(names["sifter"].select(batch).indices) < 16


@pytest.mark.parametrize("section", ["**A table, computed once**", "**Held-out samples**"])
def test_references(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, _ = loop()
    names |= {"small_model": classifier(), "held_out_batches": list(names["loader"])}
    exec(snippet("documents.md", section), names)
    assert len(list(names["sifter"](names["loader"]))) == 4


def test_examples_have_the_lines_that_their_page_shows() -> None:
    text = (DOCS / "examples.md").read_text(encoding="utf-8")
    diff = re.search(r"```diff\n(.*?)```", text, flags=re.DOTALL)
    assert diff is not None
    added = [row[1:].partition("#")[0].strip() for row in diff[1].splitlines() if row[0] == "+"]
    assert len(added) == 2
    for name in ("sft_lora", "pretrain_folder"):
        source = (DOCS.parent / "examples" / f"{name}.py").read_text(encoding="utf-8")
        assert all(line in source for line in added), name


def test_a_logger(tmp_path: Path) -> None:
    """The page's own loop and a loop of one's own, into a writer that only remembers."""
    written: list[tuple[str, float, int]] = []
    problem = build(seed=0)
    sifter = Sifter(problem.model, exit=1, score="loss", keep=0.5, draws="batch")
    model, optimizer = problem.model, problem.optimizer
    task = Task(model, optimizer, problem.loader(sifter), problem.loss, problem.evaluate)
    names: dict[str, Any] = {
        "SummaryWriter": lambda folder: SimpleNamespace(
            add_scalar=lambda name, value, step: written.append((name, value, step))
        ),
        "Engine": Engine,
        "task": task,
        "sifter": sifter,
        "pace": Pace(updates=4, log_every=2, evaluate_every=4),
        "folder": RunFolder.create(tmp_path / "run", config={}),
        "step": 100,
    }
    exec(snippet("integrations.md", "## Loggers"), names)
    assert sifter.step == 4
    assert {"train/loss", "eval/accuracy", "sifting/samples_trained"} <= {n for n, _, _ in written}
    assert ("sifting/samples_trained", float(sifter.stats().samples_trained), 100) in written


@pytest.mark.filterwarnings("default")  # of the processes' own imports
def test_many_devices(tmp_path: Path) -> None:
    done = run_ranks([many_devices.__file__, tmp_path], first=["transformers"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == 3


# Lightning's own
@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("line", [True, False])
def test_lightning(line: bool, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = classifier()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    off["enable_model_summary"] = False
    trainer = functools.partial(
        lightning.Trainer, accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, **off
    )
    names = {"Classifier": Classifier, "Trainer": trainer, "loader": loop()[0]["loader"]}
    exec(snippet("integrations.md", "## Lightning", line=line), names)
    assert names["trainer"].global_step == 4
