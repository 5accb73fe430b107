"""Sifting in the trainers that people use; each module imports its trainer only when it is used.

sifting.integrations.trainer     Hugging Face `Trainer`: `SiftTrainer`, `SiftMixin`
sifting.integrations.trl         TRL's `SFTTrainer`: `SiftSFTTrainer`, `SiftSFTMixin`
sifting.integrations.lightning   Lightning: `SiftCallback`

Accelerate and plain loops need no module of their own: they iterate over `sifter(loader)`.
"""
