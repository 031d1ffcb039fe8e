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
    for agent, r, w in verdicts:
        for key in ("everyone", ("agent", agent)):
            value, n = memory.get(key, (0.0, 0))
            memory[key] = (value + (1 - decay) * w * (r - value), n + w)
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
                    value, slope = token_loss(
                        s["logp"][t], s["mu"][t], s["advantages"][name][t], **bounds
                    )
                    loss += weight * value / (count * average_length)
                    gradient[i][t] += weight * slope / (count * average_length)
    members = [
        i for i, s in enumerate(batch) if any(a is not None for a in s["advantages"].values())
    ]
    gaps = {k: bounds[k] for k in ("gap_low", "gap_high")}
    for i in members:
        s = batch[i]
        for t, inside in enumerate(s["mask"]):
            if inside:
                value, slope = kl_token(s["logp"][t], s["mu"][t], s["base"][t], **gaps)
                loss += kl_coef * value / (len(members) * average_length)
                gradient[i][t] += kl_coef * slope / (len(members) * average_length)
    return loss, gradient


# Masks of whole sequences, and the other forms of the loss.


def drift(s):
    """Mean of log pi - log mu over the tokens of a sample that may train and stand in any term."""
    if all(a is None for a in s["advantages"].values()):
        return 0.0
    gaps = [
        logp - mu for logp, mu, inside in zip(s["logp"], s["mu"], s["mask"], strict=True) if inside
    ]
    return sum(gaps) / len(gaps) if gaps else 0.0


def surrogate_token(logp, ratio, advantage, *, kind, low, high, dual):
    """(loss, d loss / d logp): `low` and `high` are those of the kind; cispo has no `low` and no dual clip."""
    if kind == "cispo":
        weight = min(ratio, high)
        return -weight * advantage * logp, -weight * advantage
    plain, held = ratio * advantage, min(high, max(low, ratio)) * advantage
    loss, slope = (-plain, -plain) if plain <= held else (-held, 0.0)
    if advantage < 0 and loss > -dual * advantage:
        return -dual * advantage, 0.0
    return loss, slope


def whole_ratio(s, start, gap_low, gap_high):
    """GSPO: exp of the mean of logp - start over the tokens that may train and that the gap mask leaves."""
    gaps = [
        s["logp"][t] - start[t]
        for t, inside in enumerate(s["mask"])
        if inside and gap_low <= math.exp(s["logp"][t] - s["mu"][t]) <= gap_high
    ]
    return math.exp(sum(gaps) / len(gaps)) if gaps else 1.0


def corrected_loss(
    batch,
    *,
    weights,
    kl_coef,
    average_length,
    kind,
    low,
    high,
    dual,
    gap_low,
    gap_high,
    cap,
    opsm=None,
    band=None,
):
    """(loss, its gradient by every token's logp, tokens that each mask took) with the masks of sequences.

    Samples as in `total_loss`; with a list `old` in each it is the decoupled form, whose gap band is open and whose
    weight is min(old / mu, cap). `opsm`: delta; `band`: (low, high) of the geometric mask.
    """
    gradient = [[0.0] * len(s["logp"]) for s in batch]
    loss, taken = 0.0, {"gap": 0, "opsm": 0, "geometric": 0}
    members = [
        i for i, s in enumerate(batch) if any(a is not None for a in s["advantages"].values())
    ]
    counts = {name: sum(s["advantages"].get(name) is not None for s in batch) for name in weights}
    for i in members:
        s = batch[i]
        start = s.get("old", s["mu"])
        lowest, highest = (0.0, math.inf) if "old" in s else (gap_low, gap_high)
        steady = band is None or band[0] <= math.exp(drift(s)) <= band[1]
        for t, inside in enumerate(s["mask"]):
            if not inside:
                continue
            logp, inside_band = (
                s["logp"][t],
                lowest <= math.exp(s["logp"][t] - s["mu"][t]) <= highest,
            )
            weight = min(math.exp(s["old"][t] - s["mu"][t]), cap) if "old" in s else 1.0
            ratio = math.exp(logp - start[t])
            advantages = [
                (name, s["advantages"][name][t])
                for name in weights
                if s["advantages"].get(name) is not None
            ]
            held = [
                name for name, a in advantages if opsm is not None and a < 0 and -drift(s) > opsm
            ]
            taken["gap"] += not inside_band
            taken["geometric"] += not steady
            taken["opsm"] += bool(held)
            if not (inside_band and steady):
                continue
            for name, advantage in advantages:
                if name in held:
                    continue
                r = whole_ratio(s, start, lowest, highest) if kind == "gspo" else ratio
                value, slope = surrogate_token(
                    logp, r, advantage, kind=kind, low=low, high=high, dual=dual
                )
                share = weights[name] * weight / (counts[name] * average_length)
                loss, gradient[i][t] = loss + share * value, gradient[i][t] + share * slope
            share = kl_coef * weight * ratio / (len(members) * average_length)
            loss += share * (logp - s["base"][t]) ** 2 / 2
            gradient[i][t] += share * (logp - s["base"][t])
    return loss, gradient, taken


# Credit of groups.


def group_advantages(steps, *, floor=None, w_outcome=1.0, w_step=1.0, signed=False):
    """A of each step, or None. `steps`: dicts with task, rollout, step, outcome, reward (None: has none).

    w_outcome (o - mean o over the rollouts of the task) + w_step (s - mean s over the rollouts at this step of the
    task), each distance divided by max(population standard deviation, floor) if there is a floor. With `signed`, o is
    2 r - 1. A part whose group has one member, or all alike, or whose weight is 0, is not there; a step without a part
    is None.
    """

    def against(weight, own, others):
        if weight == 0 or own is None or max(others) == min(others):
            return None
        mean = sum(others) / len(others)
        spread = math.sqrt(sum((x - mean) ** 2 for x in others) / len(others))
        return weight * (own - mean) / (1.0 if floor is None else max(spread, floor))

    def mapped(reward):
        return 2 * reward - 1 if signed else reward

    out = []
    for s in steps:
        rollouts = {k["rollout"]: mapped(k["outcome"]) for k in steps if k["task"] == s["task"]}
        beside = [k["reward"] for k in steps if (k["task"], k["step"]) == (s["task"], s["step"])]
        parts = [
            against(w_outcome, mapped(s["outcome"]), list(rollouts.values())),
            against(w_step, s["reward"], [x for x in beside if x is not None] or [0.0]),
        ]
        parts = [x for x in parts if x is not None]
        out.append(sum(parts) if parts else None)
    return out


# Following a distribution: some tokens, and the rest of the vocabulary as one more bin.


def common(student, teacher):
    """Share of the student's likeliest tokens that are among the teacher's: two lists of ids of one position."""
    return sum(token in teacher for token in student) / len(student)


def closest_hint(student, teachers, mask):
    """The first hint with the most common tokens, of all positions: lists over positions, of each hint one."""
    places = [t for t, inside in enumerate(mask) if inside]
    counts = [sum(len(set(student[t]) & set(teacher[t])) for t in places) for teacher in teachers]
    return counts.index(max(counts))


def divergence_token(student, teacher, kind):
    """(divergence, its derivatives by the student's log-probabilities) of one position; lists of log-probabilities."""
    p, t = [math.exp(x) for x in student], [math.exp(x) for x in teacher]
    least = 1 - math.exp(-1e-7)  # of the last bin, in which there is then no slope
    q, u, moves = max(least, 1 - sum(p)), max(least, 1 - sum(t)), 1 - sum(p) > least
    pairs = list(zip(p, t, strict=True))
    if kind == "reverse":
        value = sum(a * math.log(a / b) for a, b in pairs) + q * math.log(q / u)
        return value, [a * (math.log(a / b) - (math.log(q / u) if moves else -1)) for a, b in pairs]
    if kind == "forward":
        value = sum(b * math.log(b / a) for a, b in pairs) + u * math.log(u / q)
        return value, [u * a / q * moves - b for a, b in pairs]
    value = sum(
        (a * math.log(2 * a / (a + b)) + b * math.log(2 * b / (a + b))) / 2
        for a, b in [*pairs, (q, u)]
    )
    return value, [
        a * (math.log(2 * a / (a + b)) - moves * math.log(2 * q / (q + u))) / 2 for a, b in pairs
    ]


def followed_loss(batch, *, kind, cap, average_length, gap_low, gap_high, decoupled=False):
    """(loss of the term, its gradient by every log-probability that it is about).

    Samples with lists `logp`, `mu`, `mask`, and `target`: None, or for each position a pair of lists, the student's and
    the teacher's log-probabilities of the same tokens. `decoupled`: the first of several steps, where logp is old.
    """
    count = sum(s["target"] is not None for s in batch)
    loss, gradient = 0.0, []
    for s in batch:
        rows = []
        for t, pair in enumerate(s["target"] or []):
            rho = math.exp(s["logp"][t] - s["mu"][t])
            weight = min(rho, cap) if gap_low <= rho <= gap_high else 0.0
            if decoupled:
                weight = min(rho, 2.0)
            value, slopes = divergence_token(*pair, kind)
            share = weight * s["mask"][t] / (count * average_length)
            loss += share * value
            rows.append([share * slope for slope in slopes])
        gradient.append(rows)
    return loss, gradient
