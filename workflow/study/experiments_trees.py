"""Cells of the experiments on draft trees and on verification rules.

Equal budgets: every contender may have as many nodes as every other.  A chain of n nodes is n deep; trees are at most
`k` deep, those that decide their depth themselves at most `deepest`.
"""

from __future__ import annotations

from workflow.study import legal
from workflow.study.cells import Cell
from workflow.study.config import CHAIN, StudyConfig
from workflow.study.config.base import MAX_K
from workflow.study.grid import baseline, cell, draws


def trees(config: StudyConfig) -> list[Cell]:
    """Every contender at every node budget."""
    settings, size = config.experiments.trees, config.size.trees
    names = settings.contenders if size.contenders is None else size.contenders
    chosen = [settings.contenders[name] for name in names]
    return baseline(config) + [
        _tree(config, contender.shape, contender.policy, settings.k, settings.deepest, nodes, draw)
        for draw in draws(config)
        for nodes in (settings.nodes if size.nodes is None else size.nodes)
        for contender in chosen
    ]


def _tree(config: StudyConfig, shape: str, policy: str, k: int, deepest: int, nodes: int, draw: dict) -> Cell:
    draft = config.pair_in_force().tree_draft
    if shape == CHAIN:
        depth = min(nodes, MAX_K)
        return cell(config, draft, policy, depth, **draw)
    depth = min(k if policy == "fixed" else deepest, nodes)
    return cell(config, draft, policy, depth, shape=shape, nodes=nodes, **tree_verifier(config, draw), **draw)


def tree_verifier(config: StudyConfig, draw: dict) -> dict:
    """Above temperature 0 a tree needs another rule than a chain's usual one."""
    return {} if draw["temperature"] == 0 else {"verifier": "sample_and_match"}


def verification(config: StudyConfig, temperatures: list[float] | None = None) -> list[Cell]:
    """Every rule on the shapes it is for, above temperature 0: those given, or those of the size in force."""
    settings, draft = config.experiments.verification, config.pair_in_force().tree_draft
    if temperatures is None:
        temperatures = config.size.verification_temperatures or settings.temperatures
    return baseline(config, temperatures) + [
        cell(
            config,
            draft,
            "fixed",
            settings.k,
            shape=shape,
            nodes=settings.k if shape == CHAIN else settings.nodes,
            verifier=verifier,
            **draw,
        )
        for draw in draws(config, temperatures)
        for shape, verifiers in settings.rules.items()
        for verifier in verifiers
    ]


def ablation(config: StudyConfig) -> list[Cell]:
    """The baseline and, for each draw, the arms in the order of `improvements`."""
    return baseline(config) + [found for draw in draws(config) for found in improvements(config, draw).values()]


def improvements(config: StudyConfig, draw: dict) -> dict[str, Cell]:
    """The cell of each improvement, and beside them EAGLE-2's tree (by its shape's name) without and with DDD."""
    settings, draft = config.experiments.ablation, config.pair_in_force().tree_draft
    k, deepest, nodes = settings.k, settings.deepest, settings.nodes
    return {
        "none": cell(config, draft, "fixed", k, **draw),
        "shape": _tree(config, settings.shape, "fixed", k, deepest, nodes, draw),
        "depth": cell(config, draft, "cost", deepest, **draw),
        "both": _tree(config, settings.shape, "cost", k, deepest, nodes, draw),
        settings.beside: _tree(config, settings.beside, "fixed", k, deepest, nodes, draw),
        "ddd": _tree(config, settings.beside, "ddd", k, deepest, nodes, draw),
    }


def example(config: StudyConfig) -> list[Cell]:
    """The cell whose tree is drawn: the ablation's shape at fixed depth."""
    return [improvements(config, draws(config)[0])["shape"]]


def lossy(config: StudyConfig) -> list[Cell]:
    """The lossy rules' cells, the exact rules' of the same shape that they are compared with, and the baselines."""
    found = verification(config)
    wanted = [one for one in found if one.policy != "ar" and not legal.VERIFIERS[one.verifier].lossless]
    partners = [exact_partner(found, one) for one in wanted]
    return [one for one in found if one.policy == "ar" or one in wanted or one in partners]


def exact_partner(cells: list[Cell], lossy: Cell) -> Cell | None:
    """The first exact rule's cell that differs from the lossy one in its rule alone."""
    alike = ("draft", "policy", "k", "temperature", "seed", "shape", "nodes", "dtype")
    for one in cells:
        same = all(getattr(one, name) == getattr(lossy, name) for name in alike)
        if same and legal.VERIFIERS[one.verifier].lossless:
            return one
    return None


def distributed(config: StudyConfig) -> list[Cell]:
    """The baseline and the exact rules that are tested against it, at the highest temperature and the first seed."""
    temperature = max(config.experiments.verification.temperatures)
    found = [one for one in verification(config, [temperature]) if one.seed == config.size.seeds[0]]
    return [one for one in found if legal.VERIFIERS[one.verifier].lossless]
