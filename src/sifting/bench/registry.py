"""The tasks by name, and what each needs besides its recipe."""

from __future__ import annotations

from dataclasses import dataclass

from sifting.compare.workload import FunctionWorkload, RecipeWorkload, find_workload
from sifting.training.recipe import find_recipe

SIZES = ("full", "smoke")


@dataclass(frozen=True)
class BenchTask:
    """A task of the proving ground.

    Attributes:
        recipe: name of a recipe, or path of one.
        about: one line.
        seeds: five where a run takes less than three minutes, three elsewhere.
        rate: name of the setting that is the learning rate.
        classes: whether samples have classes, without which there is no entropy to select by.
        full: the preset of the size "full".
        without: arms that cannot be run on it.
        folder: of `$SIFT_DATA`, for recipes that are told where their data is.
        own: whether it is a user's own problem, which has one size and no learning rates to try.
    """

    recipe: str
    about: str
    seeds: int = 5
    rate: str = "max_lr"
    classes: bool = True
    full: str = "full"
    folder: str = ""
    without: tuple[str, ...] = ()
    own: bool = False

    def preset(self, size: str) -> str:
        """The preset of a size."""
        if size not in SIZES:
            raise ValueError(f"size={size!r}: choose among {', '.join(SIZES)}")
        return "" if self.own else self.full if size == "full" else size


def _fashion(name: str, about: str) -> BenchTask:
    return BenchTask(f"sifting.bench.tasks.fashion:{name}", about)


TASKS: dict[str, BenchTask] = {
    "digits": BenchTask("sifting.bench.tasks.digits:DIGITS", "handwritten digits of 8×8 pixels"),
    "fashion": _fashion("CLEAN", "Fashion-MNIST, a small CNN"),
    "fashion-5": _fashion("NOISY_5", "the same, 5 % of the labels random"),
    "fashion-20": _fashion("NOISY_20", "the same, 20 % of the labels random"),
    "fashion-40": _fashion("NOISY_40", "the same, 40 % of the labels random"),
    "fashion-5-long": _fashion(
        "BY_HEART", "5 % of the labels random, 10,000 images learned by heart"
    ),
    "fashion-tail": _fashion("TAIL", "Fashion-MNIST, one class 100 times as common as another"),
    "fashion-copies": _fashion("COPIED", "6,000 images of it, each ten times, lightly shifted"),
    "cifar": BenchTask(
        "sifting.bench.tasks.cifar:EARLY", "CIFAR-10 with augmentation, stopped early", seeds=3
    ),
    "cifar-5000": BenchTask(
        "sifting.bench.tasks.cifar:FITTED",
        "5,000 images of CIFAR-10, until they are fitted",
        seeds=3,
    ),
    "debian": BenchTask(
        "sifting.bench.tasks.debian:DEBIAN", "fine-tuning MiniLM on Debian's packages", seeds=3
    ),
    "rotation": BenchTask(
        "sifting.bench.tasks.rotation:ROTATION",
        "regression: by what angle an image is rotated",
        classes=False,
    ),
    "tagging": BenchTask(
        "sifting.bench.tasks.tagging:TAGGING", "capitals and punctuation, word by word"
    ),
}
# recipes of the library that learn language; each is a task where it has the preset
LANGUAGE = {
    name: BenchTask(
        name,
        about,
        seeds=3,
        rate="lr",
        full="learn",
        folder="text",
        without=("infobatch",),  # their losses are of tokens, which its weights are not
    )
    for name, about in (
        ("bert", "BERT from scratch, judged on hidden tokens"),
        ("gpt", "GPT from scratch, in nats per byte"),
    )
}


def tasks() -> dict[str, BenchTask]:
    """All tasks that this release has."""
    language = {
        name: task for name, task in LANGUAGE.items() if task.full in find_recipe(name).presets
    }
    return {**TASKS, **language}


def find_task(name: str) -> BenchTask:
    """The task of a name.

    >>> find_task("fashion").seeds
    5
    """
    known = tasks()
    if name not in known:
        raise ValueError(f"task={name!r} is unknown: choose among {', '.join(known)}")
    return known[name]


def workload_of(task: BenchTask) -> RecipeWorkload | FunctionWorkload:
    """What a task trains."""
    return find_workload(task.recipe)
