"""Log-probabilities of tokens on one device: the reference that sharded implementations are compared with."""

import torch
from torch import Tensor


def token_logprobs(
    logits_BTV: Tensor, token_ids_BT: Tensor, temperature: float, vocab_size: int | None = None
) -> Tensor:
    """log softmax(logits / temperature) of each token given the tokens before it; float32 [B, T].

    Logits at position t predict token t + 1, so column t of the result is read from the logits at t - 1; column 0 has
    no predecessor and is 0. `vocab_size` cuts off columns of V that only pad the vocabulary: they must not enter
    the softmax. The temperature is the one that the tokens were sampled at.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive to define a log-probability, got {temperature}")
    scaled_BTV = logits_BTV[:, :-1, :vocab_size].float() / temperature
    next_ids_BT = token_ids_BT[:, 1:]
    chosen_BT = scaled_BTV.gather(-1, next_ids_BT[..., None]).squeeze(-1)
    logprobs_BT = chosen_BT - scaled_BTV.logsumexp(-1)
    return torch.nn.functional.pad(logprobs_BT, (1, 0))
