"""The loader snippets of the pages run as they stand there: a diff with its added lines, and without."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from tests.helpers.trainer_models import Texts, classifier

DOCS = Path(__file__).resolve().parents[2] / "docs"


def snippet(page: str, section: str, *, line: bool = True) -> str:
    """The first code of a section; of a diff, what stands there with or without the line."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(r"```(diff|python)\n(.*?)```", text[text.index(section) :], flags=re.DOTALL)
    assert found is not None
    kind, code = found.groups()
    if kind == "python":
        return str(code)
    left_out = "-" if line else "+"
    return "\n".join(row[1:] for row in code.splitlines() if not row.startswith(left_out))


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
    names["accelerator"] = accelerate.Accelerator(cpu=True)
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


@pytest.mark.parametrize("line", [True, False])
def test_the_trainer(line: bool, tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers")
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    arguments = functools.partial(hf.TrainingArguments, num_train_epochs=1, **quiet)
    names: dict[str, Any] = {"model": classifier(), "dataset": texts()}
    names["TrainingArguments"] = lambda _, **given: arguments(str(tmp_path), **given)
    exec(snippet("integrations.md", "## Hugging Face Trainer", line=line), names)
    assert names["trainer"].state.global_step == 1  # 32 samples, of which a step trains 32


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
