"""Large batches on small memory: the gradient of a batch of thousands with the memory of a few dozen.

A ranking loss needs all embeddings of a batch at once, but not all activations. So (gradient caching,
Gao et al. 2021): embed in chunks without a graph; take the loss and its gradient on all embeddings; embed
each chunk again with a graph and the same randomness, and push its part of the gradient through the model.
The price is one more forward pass; the result is the gradient of the whole batch, exactly.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """The state of torch's random generators, so that dropout can be repeated."""

    cpu: Tensor
    accelerator: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> "RandomState":
        """The present state, of the CPU and of `device`."""
        if device.type == "cpu":
            return cls(torch.get_rng_state(), None)
        return cls(torch.get_rng_state(), torch.get_device_module(device).get_rng_state(*_which(device)))

    @contextmanager
    def repeated(self, device: torch.device) -> Iterator[None]:
        """Inside, random numbers are drawn as they were from this state on; outside, nothing has changed."""
        before = RandomState.now(device)
        self.restore(device)
        try:
            yield
        finally:
            before.restore(device)

    def restore(self, device: torch.device) -> None:
        """Make this the present state."""
        torch.set_rng_state(self.cpu)
        if self.accelerator is not None:
            torch.get_device_module(device).set_rng_state(self.accelerator, *_which(device))


def _which(device: torch.device) -> tuple[torch.device, ...]:
    """How a device is named to the functions of its module: there is only one MPS, and it takes no name."""
    return () if device.type == "mps" else (device,)


def backward_in_chunks(
    encode: Callable[[Tensor], Tensor],
    first_reading: Iterable[Tensor],
    second_reading: Iterable[Tensor],
    loss_of: Callable[[Tensor], Tensor],
    device: torch.device,
    scale: float | Tensor = 1.0,
) -> Tensor:
    """Add the gradient of `loss_of(encode(all inputs))` to the parameters' gradients; return the loss.

    Args:
        encode: (n, ...) inputs -> (n, D) embeddings, through the parameters. No batch statistics may be
            involved: a chunk must be embedded as it would be inside the whole batch.
        first_reading: the inputs, chunk by chunk.
        second_reading: the same chunks once more; the same list, or read from disk again.
        loss_of: (N, D) embeddings of all chunks -> scalar. It may hold parameters of its own and may gather
            embeddings from other processes.
        device: where the model computes, for its random state.
        scale: factor on the gradient (loss scaling of half precision).

    >>> layer = torch.nn.Linear(3, 2)
    >>> chunks = torch.randn(6, 3).split(2)
    >>> loss = backward_in_chunks(layer, chunks, chunks, lambda e: e.square().mean(), torch.device("cpu"))
    >>> direct = torch.autograd.grad(layer(torch.cat(chunks)).square().mean(), layer.weight)[0]
    >>> torch.allclose(layer.weight.grad, direct)
    True
    """
    states: list[RandomState] = []
    parts: list[Tensor] = []
    with torch.no_grad():
        for chunk in first_reading:
            states.append(RandomState.now(device))
            parts.append(encode(chunk))
    embeddings = torch.cat(parts).detach().requires_grad_()
    loss = loss_of(embeddings)
    if not loss.requires_grad:  # a loss that does not depend on the embeddings has nothing to push
        return loss.detach()
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    gradient = embeddings.grad
    if gradient is None:
        return loss.detach()
    pieces = torch.split(gradient, [len(part) for part in parts])
    for chunk, state, piece in zip(second_reading, states, pieces, strict=True):
        with state.repeated(device):
            again = encode(chunk)
        again.backward(piece.to(again.dtype))  # type: ignore[no-untyped-call]
    return loss.detach()
