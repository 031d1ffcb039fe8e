"""Decision 8 said a second time, in float64 numpy, from the design page and not from the code. Shares nothing with src.

One token at a time and in plain loops, so that it can be read against the formulas.
"""

from __future__ import annotations

import math


def baselines(memory, agent, shrink):
    """b of an agent: n/(n+shrink) of its own average, the rest of everybody's."""
    everyone = memory.get("everyone", (0.0, 0))[0]
    own, n = memory.get(("agent", agent), (0.0, 0))
    return (n * own + shrink * everyone) / (n + shrink) if n + shrink > 0 else everyone


def baselines_after(memory, verdicts, decay):
    memory = dict(memory)
    for agent, r in verdicts:
        for key in ("everyone", ("agent", agent)):
            value, n = memory.get(key, (0.0, 0))
            memory[key] = (decay * value + (1 - decay) * r, n + 1)
    return memory


def opd_advantage(o, teachers, bound):
    """One token: clip(T - o, +-C), T the even mixture of the hinted teachers."""
    teacher = math.log(sum(math.exp(t) for t in teachers) / len(teachers))
    return min(bound, max(-bound, teacher - o))


def token_loss(logp, mu, advantage, *, low, high, dual, gap_low, gap_high):
    """(loss, d loss / d logp) of one token of one term."""
    rho = math.exp(logp - mu)
    if rho < gap_low or rho > gap_high:
        return 0.0, 0.0
    plain, held = rho * advantage, min(high, max(low, rho)) * advantage
    if plain <= held:
        loss, slope = -plain, -plain
    else:
        loss, slope = -held, 0.0
    if advantage < 0 and loss > -dual * advantage:
        loss, slope = -dual * advantage, 0.0
    return loss, slope


def kl_token(logp, mu, base, *, gap_low, gap_high):
    """(k2 with rho held fixed, its derivative by logp) of one token."""
    rho = math.exp(logp - mu)
    if rho < gap_low or rho > gap_high:
        return 0.0, 0.0
    return rho * (logp - base) ** 2 / 2, rho * (logp - base)


def total_loss(batch, *, weights, kl_coef, average_length, bounds):
    """Loss and its gradient by every token's logp.

    batch: list of samples, each a dict with lists `logp`, `mu`, `base`, `mask`, and `advantages`: a dict from term name
    to a list (None: the sample is not in that term).
    """
    gradient = [[0.0] * len(s["logp"]) for s in batch]
    loss = 0.0
    for name, weight in weights.items():
        count = sum(1 for s in batch if s["advantages"].get(name) is not None)
        for i, s in enumerate(batch):
            if s["advantages"].get(name) is None:
                continue
            for t, inside in enumerate(s["mask"]):
                if inside:
                    value, slope = token_loss(s["logp"][t], s["mu"][t], s["advantages"][name][t], **bounds)
                    loss += weight * value / (count * average_length)
                    gradient[i][t] += weight * slope / (count * average_length)
    members = [i for i, s in enumerate(batch) if any(a is not None for a in s["advantages"].values())]
    gaps = {k: bounds[k] for k in ("gap_low", "gap_high")}
    for i in members:
        s = batch[i]
        for t, inside in enumerate(s["mask"]):
            if inside:
                value, slope = kl_token(s["logp"][t], s["mu"][t], s["base"][t], **gaps)
                loss += kl_coef * value / (len(members) * average_length)
                gradient[i][t] += kl_coef * slope / (len(members) * average_length)
    return loss, gradient
