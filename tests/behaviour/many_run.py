"""Run by `accelerate launch`, and as ranks, from test_many.py; and by it in one process with the joined batch.

Each case trains a tiny model and leaves, in a file: which samples each step trained on all ranks
together, and the weights at the end.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.trainer_models import Texts, classifier

PAPER = {"exit": 1, "score": "loss", "keep": 0.5, "audit_every": 0}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
INIT: Any = None  # of Accelerate's own state
TOGETHER = 8  # samples that all processes train in a step


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def everyones(value: Any) -> list[Any]:
    found: list[Any] = [value] * world()
    if world() > 1:
        dist.all_gather_object(found, value)
    return found


def outcome(seen: list[list[int]], model: torch.nn.Module) -> dict[str, Any]:
    weights = []
    for parameter in model.parameters():
        whole = getattr(parameter, "full_tensor", None)
        weights.append((parameter if whole is None else whole()).detach().clone())
    steps = zip(*everyones(seen), strict=True)
    return {
        "seen": [sorted(one for part in parts for one in part) for parts in steps],
        "weights": weights,
    }


def paper() -> dict[str, Any]:
    """The paper's setting, all ranks choosing together where there are several."""
    return {**PAPER, **({"scope": "global"} if world() > 1 else {})}


def begin(fsdp: bool) -> None:
    """A fresh Accelerate, which keeps its settings in singletons.

    Of processes on a CPU it shards none, and says nothing of it; of what it takes for GPUs it does, and
    its FSDP2 runs on a CPU as well.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType

    for state in (AcceleratorState, GradientState):
        state._reset_state()
    os.environ["ACCELERATE_USE_FSDP"] = "false"
    kind = DistributedType.MULTI_GPU if fsdp else DistributedType.MULTI_CPU

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        INIT(self, *args, **kwargs)
        if "RANK" in os.environ and "distributed_type" in self.__dict__:
            self._shared_state["distributed_type"] = kind

    global INIT
    INIT = INIT or PartialState.__init__
    PartialState.__init__ = made
    if "RANK" in os.environ:
        PartialState(cpu=True, backend="gloo")


def check_sharded(model: torch.nn.Module, fsdp: bool) -> None:
    from torch.distributed.fsdp import FSDPModule

    parts = [isinstance(module, FSDPModule) for module in model.modules()]
    assert sum(parts) > 3 if fsdp and world() > 1 else not any(parts)


def prepared(
    alone: bool,
    *,
    fsdp: bool = False,
    accumulate: int = 1,
    size: int | None = None,
    samples: int = 64,
    sift: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[Any, Any, Any, Any, Any]:
    """All that a plain loop under Accelerate needs."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, FullyShardedDataParallelPlugin
    from torch.utils.data import DataLoader

    from sifting import Sifter
    from sifting.checkpoint import Portable

    begin(fsdp)
    plugin = None
    if fsdp and not alone:
        wrap = {"transformer_cls_names_to_wrap": ["BertLayer"], "reshard_after_forward": True}
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", **wrap
        )
    accelerator = Accelerator(
        cpu=True,
        fsdp_plugin=plugin,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(
            use_seedable_sampler=True, data_seed=3, **({} if alone else config)
        ),
    )
    model: Any = classifier(**STILL)
    data: Any = [{k: v for k, v in sample.items() if k != "unused"} for sample in Texts(samples)]
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
    size = TOGETHER if alone else size or TOGETHER // world()
    loader: Any = DataLoader(data, size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    check_sharded(model, fsdp)
    sifter = Sifter(model, **{**paper(), **(sift or {})})
    accelerator.register_for_checkpointing(Portable(sifter))
    return accelerator, model, optimizer, loader, sifter


def loop(folder: Path, *, stop: int | None = None, **options: Any) -> dict[str, Any]:
    """A plain loop under Accelerate, two epochs of it.

    Args:
        folder: of what is saved.
        stop: where there are several processes, the step after which they save their state, and
            others go on.
        options: of `prepared`.
    """
    from accelerate.state import PartialState

    alone = not dist.is_initialized() and "RANK" not in os.environ
    accelerator, model, optimizer, loader, sifter = prepared(alone, **options)
    seen: list[list[int]] = []
    epoch, at = 0, None if alone else stop
    while epoch < 2:
        model.train()
        for batch in sifter(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            seen.append(batch["input_ids"][:, 0].tolist())
            if len(seen) == at:
                break
        if len(seen) != at:
            epoch += 1
            continue
        at = None
        saved = folder / f"state{stop}"
        accelerator.save_state(str(saved))
        accelerator, model, optimizer, loader, sifter = prepared(alone, **options)
        accelerator.load_state(str(saved))
    found = outcome(seen, model)
    if alone:
        PartialState._reset_state()
    return found


def uneven(folder: Path) -> dict[str, Any]:
    """Ranks with different numbers of batches are refused."""
    if world() == 1 and "RANK" not in os.environ:
        return {}
    try:
        loop(folder, samples=68, even_batches=False)
    except ValueError as error:
        return {"error": str(error)}
    return {"error": "none"}


def distributed(fsdp: bool, layer: str) -> dict[str, Any]:
    """Arguments of a Trainer of this run."""
    begin(fsdp)
    found: dict[str, Any] = {"per_device_train_batch_size": TOGETHER // world()}
    if world() > 1:
        found |= {"ddp_backend": "gloo", "ddp_find_unused_parameters": False}
    if fsdp and world() > 1:
        wrap = {"version": 2, "transformer_layer_cls_to_wrap": [layer]}
        found |= {"fsdp": "full_shard auto_wrap", "fsdp_config": wrap}
    return found


def trainer(
    folder: Path, *, fsdp: bool = False, accelerator: dict[str, Any] | None = None
) -> dict[str, Any]:
    """SiftTrainer, with gradient accumulation."""
    from tests.helpers.hf_trainer import run

    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "learning_rate": 0.5}
    # else the Trainer multiplies this model's mean loss by the number of processes, sifted or not
    options["average_tokens_across_devices"] = False
    options |= distributed(fsdp, "BertLayer")
    if accelerator is not None and world() > 1:
        options["accelerator_config"] = accelerator
    made = run(folder, model=classifier(**STILL), sift=paper(), optim="sgd", **options)
    check_sharded(made.model, fsdp)
    return outcome(made.seen, made.model)


def sft(folder: Path, *, fsdp: bool = False, packed: bool = False) -> dict[str, Any]:
    """SiftSFTTrainer, its batches packed, or padded to one length, so that samples can move."""
    from tests.helpers.trl_sft import data, documents_of, run

    options: dict[str, Any] = {"optim": "sgd", "learning_rate": 1e-1}
    options |= {"packing": True} if packed else {"pad_to_multiple_of": 16}
    options |= distributed(fsdp, "LlamaDecoderLayer")
    made = run(folder, sift=paper(), rows=data(400), **options)  # one pass: ranks end it otherwise
    check_sharded(made.model, fsdp)
    seen = [documents_of(rows) if packed else list(map(tuple, rows)) for rows in made.seen]
    if packed:
        assert world() > 1 or any(len(one) % 2 for one in seen)  # of which ranks have not as many
    return outcome([list(map(hash, one)) for one in seen], made.model)


def dpo(folder: Path, *, fsdp: bool = False) -> dict[str, Any]:
    """SiftDPOTrainer: both of a pair move together."""
    from tests.helpers.trl_pairs import run

    options: dict[str, Any] = {"pad_to_multiple_of": 16, "optim": "sgd", "learning_rate": 1e-1}
    options |= distributed(fsdp, "LlamaDecoderLayer")
    given = {"exit": 1, "keep": 0.5, "audit_every": 0}
    made = run(folder, sift={**given, **({"scope": "global"} if world() > 1 else {})}, **options)
    check_sharded(made.model, fsdp)
    halves = [(rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in made.seen]
    seen = [[hash((tuple(a), tuple(b))) for a, b in zip(*both, strict=True)] for both in halves]
    return outcome(seen, made.model)


LOOPS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"fsdp": True},
    "accumulate": {"accumulate": 3},
    "split": {"split_batches": True, "size": TOGETHER},
    "dispatch": {"dispatch_batches": True},
    "dispatch accumulate": {"dispatch_batches": True, "accumulate": 3},
    "dispatch split": {"dispatch_batches": True, "split_batches": True, "size": TOGETHER},
    "resumed": {"stop": 11},
    "resumed fsdp": {"stop": 3, "fsdp": True},
    "resumed dispatch": {"stop": 6, "dispatch_batches": True},
}
TRAINERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "trainer ddp": trainer,
    "trainer dispatch": lambda folder: trainer(folder, accelerator={"dispatch_batches": True}),
    "trainer fsdp": lambda folder: trainer(folder, fsdp=True),
    "sft ddp": sft,
    "sft fsdp": lambda folder: sft(folder, fsdp=True),
    "sft packed": lambda folder: sft(folder, packed=True),
    "sft packed fsdp": lambda folder: sft(folder, packed=True, fsdp=True),
    "dpo ddp": dpo,
    "dpo fsdp": lambda folder: dpo(folder, fsdp=True),
}


def run_all(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "loops":
        found = {name: loop(folder, **options) for name, options in LOOPS.items()}
        return {**found, "uneven": uneven(folder)}
    return {name: case(folder) for name, case in TRAINERS.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, folder = sys.argv[1], Path(sys.argv[2])
    try:
        if kind == "trainers":
            dist.init_process_group("gloo")
        found = run_all(kind, folder)
        if dist.get_rank() == 0:
            torch.save(found, folder / "found.pt")
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # without gloo's own end, which at times aborts
