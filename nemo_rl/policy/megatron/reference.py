"""The reference policy, without a second model: adapters off, or the trainable weights of the run's start put back."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import torch

from nemo_rl.policy.megatron.model import PolicyModel


class ReferenceKind(Enum):
    """BASE: the frozen base, adapters off. START: the trainable weights as they were at the start of the run."""

    BASE = "base"
    START = "start"


class ReferencePolicy:
    """Turns the live model into the reference for the length of a context.

    BASE costs nothing. START, which full-parameter training always uses, keeps one host copy of the trainable
    weights and exchanges it in place.
    """

    def __init__(self, model: PolicyModel, kind: ReferenceKind) -> None:
        self.model = model
        self.kind = ReferenceKind.START if model.adapters is None else kind
        self.start: dict[str, torch.Tensor] = {}
        if self.kind is ReferenceKind.START:
            self.remember_start()

    def remember_start(self) -> None:
        """Take the present trainable weights as the reference."""
        self.start = {name: p.detach().to("cpu", copy=True) for name, p in self.model.trainable().items()}

    @contextmanager
    def active(self) -> Iterator[None]:
        if self.kind is ReferenceKind.BASE and self.model.adapters is not None:
            with self.model.adapters.disabled():
                yield
            return
        parameters = self.model.trainable()
        live = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
        try:
            _put(parameters, self.start)
            yield
        finally:
            _put(parameters, live)


def _put(parameters: dict[str, torch.nn.Parameter], values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
