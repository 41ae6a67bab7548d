"""The terms of reports, explained in both languages."""

from sktune.core.language import Texts

GLOSSARY: Texts = {
    "term.unit": ("unit", "单元"),
    "term.unit.means": (
        "a module's forward in the decode step, such as layers.0.self_attn; scopes begin and end between units",
        "Decode 单步中一个模块的 forward,例如 layers.0.self_attn;Scope 的边界位于单元之间",
    ),
    "term.scope": ("scope", "Scope"),
    "term.scope.means": (
        "consecutive units that are compiled together (super_kernel on Ascend, one Inductor region elsewhere)",
        "一起编译的连续单元(昇腾上为 super_kernel,其他设备上为一个 Inductor 区域)",
    ),
    "term.plan": ("plan", "方案"),
    "term.plan.means": ("the scopes of a whole decode step, with their options", "整个 Decode 单步的 Scope 及其选项"),
    "term.baseline": ("baseline", "基线"),
    "term.baseline.means": (
        "the same step without any scope; every figure compares with it",
        "无任何 Scope 的同一单步;所有数值均与其对比",
    ),
    "term.speedup": ("speedup", "加速比"),
    "term.speedup.means": (
        "the baseline's latency divided by the plan's, from interleaved runs of both: above 1 is faster",
        "基线时延除以方案时延,由二者交错运行得出:大于 1 为更快",
    ),
    "term.interval": ("95% interval", "95% 区间"),
    "term.interval.means": (
        "where the true figure lies in 19 of 20 cases; a plan is faster only if the whole interval is above 1 by more "
        "than the noise floor",
        "真值在 20 次中有 19 次位于其中;仅当整个区间高于 1 且超过噪声底时,方案才算更快",
    ),
    "term.floor": ("noise floor", "噪声底"),
    "term.floor.means": (
        "how far the baseline differs from a second copy of itself on this machine; smaller effects are not reported",
        "在本机上基线与其副本之间的差异;更小的效果不予报告",
    ),
    "term.bits": ("bits identical", "逐位一致"),
    "term.bits.means": (
        "every element of every output and of the state has the baseline's bits, without a tolerance, on the number of "
        "steps that is named",
        "在所述步数上,每个输出与状态的每个元素与基线逐位相同,无容差",
    ),
    "term.trial": ("trial", "试验"),
    "term.trial.means": ("one plan compiled, verified and measured", "编译、验证并测量一个方案"),
    "term.final": ("final comparison", "最终对比"),
    "term.final.means": (
        "the best plans measured again in fresh processes; only these figures are free of the luck of the best of many",
        "最佳方案在新进程中重测;只有这些数值不受“多中取优”的偶然性影响",
    ),
    "term.tie": ("tie", "并列"),
    "term.tie.means": (
        "a plan that cannot be told from the fastest; of such plans the simplest wins",
        "与最快方案无法区分的方案;其中最简单者胜出",
    ),
    "term.origin": ("origin", "来源"),
    "term.origin.means": (
        "what proposed a plan: a starting point (by its name), the sampler, or another study",
        "提出方案者:起点(以其名称)、采样器或其他调优记录",
    ),
    "term.probe": ("probe", "探测"),
    "term.probe.means": (
        "a plan that is tried to learn something, not because it is expected to be fast",
        "为学习而非因预期快速而尝试的方案",
    ),
    "term.superkernel": ("SuperKernel", "SuperKernel"),
    "term.superkernel.means": (
        "the kernel into which Ascend's compiler fuses operators of a scope; what it cannot fuse splits the scope",
        "昇腾编译器将 Scope 内算子融合成的 kernel;无法融合的算子会切分 Scope",
    ),
}
"""By key: English, then Chinese."""
