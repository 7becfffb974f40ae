"""The recurrence of the Show, Attend and Tell decoder over whole captions, with its gradient.

Differentiated word by word, the gradient of keys, values and recurrent weights is written out
and summed once per word. Here the recurrence is one function: its gradient goes back through
time once and forms those of all weights and values in one product each at the end.

Shapes: M pictures, N captions, P real positions in step order, n captions at work in a step,
R regions, A attention width, C width of the values, H width of the LSTM.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from captioner.models.attention import (
    AttentionScore,
    region_scores,
    region_scores_gradient,
    weighted_regions,
)
from captioner.models.captions import StepLayout


def lstm_gates(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One LSTM update from the summed inputs of its gates.

    Args:
        gates: Sums before the non-linearities, (n, 4H), in the order input, forget, candidate,
            output of ``nn.LSTM``.
        cell: Cell before the update, (n, H).

    Returns:
        Hidden state (n, H), cell (n, H) and the four gates after their non-linearities (n, 4H).
    """
    width = cell.shape[1]
    activated = torch.cat(
        (
            gates[:, : 2 * width].sigmoid(),
            gates[:, 2 * width : 3 * width].tanh(),
            gates[:, 3 * width :].sigmoid(),
        ),
        dim=1,
    )
    enter, keep, candidate, leave = activated.chunk(4, dim=1)
    cell = keep * cell + enter * candidate
    return leave * cell.tanh(), cell, activated


class AttentiveRecurrence(torch.autograd.Function):
    """All steps of the decoder, for captions laid out by ``StepLayout``.

    ``apply(layout, score, word_gates, hidden, cell, keys, values, hidden_weight, hidden_bias,
    context_weight, *score.weights())`` gives hidden states (P, H), contexts (P, C) and attention
    (P, R), in step order. ``word_gates`` (P, 4H) is what the words give to the gates; ``hidden``
    and ``cell`` (N, H) are the initial states in the order of ``layout.rows``;
    ``hidden_weight`` (A [+ C] + 4H, H) makes query, context gate (if there is one) and gates from
    the hidden state before the word, ``context_weight`` (4H, C) gates from the context.
    """

    @staticmethod
    def forward(
        ctx: Any,
        layout: StepLayout,
        score: AttentionScore,
        word_gates: Tensor,
        hidden: Tensor,
        cell: Tensor,
        keys: Tensor,
        values: Tensor,
        hidden_weight: Tensor,
        hidden_bias: Tensor,
        context_weight: Tensor,
        *score_weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the steps."""
        num_positions, width = len(layout.positions), hidden.shape[1]
        attention_dim, value_dim = keys.shape[2], values.shape[2]
        gated = hidden_weight.shape[0] == attention_dim + value_dim + 4 * width

        def buffer(columns: int) -> Tensor:
            return word_gates.new_empty(num_positions, columns)

        before, cells_before = buffer(width), buffer(width)  # the states that a step starts from
        hiddens, cells, gates = buffer(width), buffer(width), buffer(4 * width)
        queries, attention = buffer(attention_dim), buffer(keys.shape[1])
        contexts, context_gates = buffer(value_dim), buffer(value_dim if gated else 0)
        plain_contexts = buffer(value_dim) if gated else contexts
        start = 0
        for size, groups in zip(layout.sizes, layout.groups, strict=True):
            here = slice(start, start + size)
            start += size
            hidden, cell = hidden[:size], cell[:size]
            before[here], cells_before[here] = hidden, cell
            from_hidden = torch.addmm(hidden_bias, hidden, hidden_weight.mT)
            queries[here] = from_hidden[:, :attention_dim]
            scores = region_scores(score, queries[here], keys, groups)
            attention[here] = scores.softmax(dim=1)
            context = weighted_regions(attention[here], values, groups)
            plain_contexts[here] = context
            if gated:
                opening = from_hidden[:, attention_dim : attention_dim + value_dim].sigmoid()
                context_gates[here] = opening
                context = torch.mul(opening, context, out=contexts[here])
            sums = torch.addmm(word_gates[here], context, context_weight.mT)
            sums += from_hidden[:, -4 * width :]
            hidden, cell, gates[here] = lstm_gates(sums, cell)
            hiddens[here], cells[here] = hidden, cell
        ctx.layout, ctx.score, ctx.gated = layout, score, gated
        ctx.save_for_backward(
            *(before, cells_before, cells, gates, queries, attention),
            *(contexts, plain_contexts, context_gates),
            *(keys, values, hidden_weight, context_weight, *score_weights),
        )
        ctx.set_materialize_grads(False)
        return hiddens, contexts, attention

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_hiddens: Tensor | None,
        grad_contexts: Tensor | None,
        grad_maps: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        """Go back through the steps; sum the gradients of weights and values at the end."""
        before, cells_before, cells, gates, queries, attention, *rest = ctx.saved_tensors
        contexts, plain_contexts, context_gates, *rest = rest
        keys, values, hidden_weight, context_weight, *score_weights = rest
        layout: StepLayout = ctx.layout
        width, attention_dim = before.shape[1], keys.shape[2]
        num_rows, value_dim = len(layout.rows), values.shape[2]
        from_hidden = before.new_empty(len(before), hidden_weight.shape[0])
        grad_plain = torch.empty_like(plain_contexts)
        grad_keys = torch.zeros_like(keys)
        grad_score_weights = tuple(torch.zeros_like(weight) for weight in score_weights)
        grad_hidden = before.new_zeros(num_rows, width)
        grad_cell = before.new_zeros(num_rows, width)
        stop = len(before)
        for size, groups in zip(reversed(layout.sizes), reversed(layout.groups), strict=True):
            here = slice(stop - size, stop)
            stop -= size
            into_hidden, into_cell = grad_hidden[:size], grad_cell[:size]
            if grad_hiddens is not None:
                into_hidden += grad_hiddens[here]
            # The LSTM: h = leave * tanh(c), c = keep * c' + enter * candidate.
            enter, keep, candidate, leave = gates[here].chunk(4, dim=1)
            squashed = cells[here].tanh()
            into_cell += into_hidden * leave * (1 - squashed.square())
            into_sums = from_hidden[here, -4 * width :]
            torch.mul(into_cell * candidate, enter * (1 - enter), out=into_sums[:, :width])
            torch.mul(
                into_cell * cells_before[here],
                keep * (1 - keep),
                out=into_sums[:, width : 2 * width],
            )
            torch.mul(
                into_cell * enter,
                1 - candidate.square(),
                out=into_sums[:, 2 * width : 3 * width],
            )
            torch.mul(into_hidden * squashed, leave * (1 - leave), out=into_sums[:, 3 * width :])
            into_cell *= keep
            # The context and its gate.
            into_context = into_sums @ context_weight
            if grad_contexts is not None:
                into_context += grad_contexts[here]
            if ctx.gated:
                opening = context_gates[here]
                torch.mul(
                    into_context * contexts[here],
                    1 - opening,
                    out=from_hidden[here, attention_dim : attention_dim + value_dim],
                )
                into_context = into_context * opening
            grad_plain[here] = into_context
            # The softmax and the scores.
            into_maps = groups.collect(torch.bmm(groups.spread(into_context), values.mT))
            if grad_maps is not None:
                into_maps += grad_maps[here]
            maps = attention[here]
            weighted = into_maps * maps
            into_scores = weighted - maps * weighted.sum(1, keepdim=True)
            from_hidden[here, :attention_dim] = region_scores_gradient(
                *(ctx.score, queries[here], keys, groups),
                *(into_scores, grad_keys, grad_score_weights),
            )
            torch.mm(from_hidden[here], hidden_weight, out=into_hidden)
        by_picture = layout.all_positions
        grad_values = torch.bmm(by_picture.spread(attention).mT, by_picture.spread(grad_plain))
        grad_sums = from_hidden[:, -4 * width :]
        return (
            None,
            None,
            grad_sums,
            grad_hidden,
            grad_cell,
            grad_keys,
            grad_values,
            from_hidden.mT @ before,
            from_hidden.sum(0),
            grad_sums.mT @ contexts,
            *grad_score_weights,
        )
