"""All words of the page's pictures, in both languages."""

from sktune.core.language import Texts

PICTURES: Texts = {
    # Plans.
    "plans.title": ("The plan", "方案"),
    "plans.lead": (
        "Every unit of the decode step in execution order, and below it the winner and the next best plans: a bar is "
        "one scope, its letter stands for its options.",
        "Decode 单步的所有单元(按执行顺序),其下为胜出方案及次优方案:每条为一个 Scope,字母代表其选项。",
    ),
    "plans.lead_so_far": (
        "Every unit of the decode step in execution order, and below it the best plans so far: a bar is one "
        "scope, its "
        "letter stands for its options.",
        "Decode 单步的所有单元(按执行顺序),其下为目前最佳的方案:每条为一个 Scope,字母代表其选项。",
    ),
    "plans.kind": ("{kind} layers", "{kind} 层"),
    "plans.outside": ("outside of layers", "层外"),
    "plans.main_stream": ("main stream", "主流"),
    "plans.lane": ("row {row}: {stream}", "第 {row} 行:{stream}"),
    "plans.detail": ("The best plan in detail; layers that look alike are drawn once", "最佳方案细节;相同的层只画一次"),
    "plans.became": ("What became of the {scopes} scopes", "{scopes} 个 Scope 的融合结果"),
    "plans.in_its_trial": (" in its trial", "(试验值)"),
    "plans.superkernel": ("became one SuperKernel", "融合为一个 SuperKernel"),
    "plans.alone": ("not fused: kernels of their own, which split the scope", "未融合:独立 kernel,切分了 Scope"),
    "plans.counts": (
        "Of the {operators} operators in the best plan's scopes, {alone} were not fused; the others became "
        "{superkernels} SuperKernels.",
        "最佳方案 Scope 内的 {operators} 个算子中,{alone} 个未融合;其余成为 {superkernels} 个 SuperKernel。",
    ),
    "plans.saved": ("saved in its trial, ms", "试验中节省 (ms)"),
    # The waterfall.
    "waterfall.title": ("From the baseline to the best plan", "从基线到最佳方案"),
    "waterfall.lead": (
        "The best plan saves {saved} {unit} per step, by its speedup. The model learned from all trials expects "
        "{explained} {unit}: scopes by kind first, then each option. Green lowers the latency, red raises it.",
        "按加速比,最佳方案每步节省 {saved} {unit}。"
        "由全部试验学到的模型预期 {explained} {unit}:先是各类 Scope,再是各选项。"
        "绿色降低时延,红色升高时延。",
    ),
    "waterfall.baseline": ("baseline", "基线"),
    "waterfall.group": ("{name} ({scopes}×)", "{name}({scopes}×)"),
    "waterfall.other_groups": ("{groups} other kinds ({scopes}×)", "其他 {groups} 类({scopes}×)"),
    "waterfall.borders": ("borders between scopes, capture", "Scope 边界与捕获"),
    "waterfall.unexplained": ("not explained", "未解释"),
    "waterfall.change": ("change, {unit}", "变化 ({unit})"),
    "waterfall.reached": ("reached, {unit}", "累计 ({unit})"),
    "waterfall.axis": (
        "decode step latency, {unit}; the axis begins at {low}",
        "Decode 单步时延 ({unit});坐标轴从 {low} 开始",
    ),
    # The final comparison.
    "final.title": ("Final comparison", "最终对比"),
    "final.lead": (
        "The best plans measured again in {processes} fresh processes, interleaved with the baseline. Lines are 95% "
        "intervals, rings single processes, the band the noise floor ({floor}): smaller effects are not reported.",
        "最佳方案在 {processes} 个新进程中与基线交错重测。线为 95% 区间,圆环为单个进程,灰带为噪声底({floor}):更小"
        "的效果不予报告。",
    ),
    "final.dies": (
        "The processes ran on these dies, in this order: {dies}.",
        "各进程依次运行于以下 die:{dies}。",
    ),
    "final.bias": (
        "The winner's figure is lowered by {bias} for having been chosen as the best of several, the others' are not.",
        "胜出方案的数值因“多中取优”下调 {bias},其他方案未下调。",
    ),
    "final.lead_simulated": (
        "The best plans, simulated: these figures have no interval.",
        "最佳方案(仿真):数值没有区间。",
    ),
    "final.baseline": ("baseline (no scope, kernel by kernel)", "基线(无 Scope,逐算子)"),
    "final.baseline_again": ("the baseline, compiled again", "再次编译的基线"),
    "final.uncompiled": ("the model uncompiled", "未编译的模型"),
    "final.max_autotune": ('torch.compile(mode="max-autotune")', 'torch.compile(mode="max-autotune")'),
    "final.by_process": ("by process", "各进程"),
    # The history.
    "history.title": ("Course of the search", "搜索过程"),
    "history.lead": (
        "All {trials} trials with their intervals, by their own measurement; failures are in lanes below.",
        "全部 {trials} 次试验及其区间(各自测量);失败的列在下方。",
    ),
    "history.settled": ("settled", "已稳定"),
    "history.settled_lead": (
        "From trial {trial} on, no plan was significantly better.",
        "自试验 {trial} 起,没有方案显著更好。",
    ),
    "history.described": ("{trials} trials, the best {best} times as fast", "{trials} 次试验,最佳为 {best} 倍"),
    "history.sampler": ("sampler", "采样器"),
    "history.start": ("starting point", "起点"),
    "history.probe": ("probe (to learn from)", "探测(用于学习)"),
    "history.incumbent": ("best so far", "目前最佳"),
    "history.slower": ("slower", "较慢"),
    # Segments.
    "segments.title": ("What one scope saves", "单个 Scope 的收益"),
    "segments.lead": (
        "First unit down, last unit across, in {unit} per step for one layer; in brackets the winner's scopes. "
        "Strong colour: large and certain; “?”: the interval contains zero; hatched: inferred, never tried.",
        "纵向为首单元,横向为末单元,单位为单层每步 {unit};括号内为胜出方案的 Scope。"
        "颜色深:大且确定;“?”:区间包含零;斜线:从未尝试,由其他推断。",
    ),
    "segments.in_scope": ("{unit}  (scope {scope})", "{unit}(Scope {scope})"),
    "segments.never": ("never tried", "从未尝试"),
    "segments.cell": (
        "{first} to {last}: {saving} ± {doubt}; tried: {tried}",
        "{first} 至 {last}:{saving} ± {doubt};尝试:{tried}",
    ),
    "segments.described": (
        "Savings of one scope in a {kind} layer by first and last unit",
        "{kind} 层中单个 Scope 的收益(按首末单元)",
    ),
    # Effects.
    "effects.title": ("Effects of units, borders and options", "单元、边界与选项的效果"),
    "effects.lead": (
        "What each saves per step if it is inside a scope, or for an option, in the best plan; with 95% intervals.",
        "每项在 Scope 内(选项则为最佳方案中)每步节省的时间,含 95% 区间。",
    ),
    "effects.misfit": (
        "Steps deviate from the model's predictions by {times} times their noise: treat these figures with caution.",
        "单步时延偏离模型预测达其噪声的 {times} 倍:请谨慎对待这些数值。",
    ),
    "effects.units": ("Units", "单元"),
    "effects.borders": ("Borders", "边界"),
    "effects.options": ("Options", "选项"),
    "effects.sort": ("what", "类别"),
    "effects.saves": ("saves, {unit}", "节省 ({unit})"),
    "effects.tried": ("{name} (tried {trials}×)", "{name}({trials} 次)"),
    "effects.more": ("{count} smaller ones are in the table.", "另有 {count} 项较小的见表格。"),
    # Failures.
    "failures.title": ("Failures", "失败"),
    "failures.lead": (
        "{failed} of {trials} trials failed: {what}. Red: the scope that is to blame contains this unit and has this "
        "option; pale: it is one of several suspects.",
        "{trials} 次试验中 {failed} 次失败:{what}。红色:被归因的 Scope 含此单元与此选项;浅色:多个嫌疑之一。",
    ),
    "failures.blamed": ("scope to blame", "归因的 Scope"),
    "failures.unknown": ("unknown", "未知"),
    "failures.options": ("its options", "其选项"),
    "failures.line": ("the log's line", "日志行"),
    "failures.log": ("log", "日志"),
    "failures.cell_blamed": ("to blame in {count} trials: {trials}", "{count} 次试验被归因:{trials}"),
    "failures.cell_suspected": ("suspected in {count} trials: {trials}", "{count} 次试验有嫌疑:{trials}"),
    # Predictions.
    "predicted.title": ("Predicted and measured", "预测与实测"),
    "predicted.lead": (
        "What the model expects of each plan from the other trials, against its own measurement: {within} of "
        "{count} lie "
        "within the 95% interval; the farthest is {worst} standard deviations off. The table has the farthest.",
        "模型由其他试验对每个方案的预期与其自身实测的对照:{count} 个中有 {within} 个在 95% 区间内;最远偏离 {worst}"
        " 个标准差。表中为偏离最大者。",
    ),
    "predicted.measured": ("measured saving", "实测节省"),
    "predicted.expected": ("expected saving", "预期节省"),
    "predicted.surprise": ("off by, sd", "偏离 (sd)"),
    "predicted.described": ("Expected against measured savings of {count} plans", "{count} 个方案的预期与实测节省"),
    # The machine.
    "machine.title": ("The machine", "机器"),
    "machine.lead": (
        "The noise floor was {floor} (looks: {looks}); other load disturbed {disturbed} of {trials} trials.",
        "{looks} 次观察中噪声底为 {floor};{trials} 次试验中 {disturbed} 次受其他负载干扰。",
    ),
    "machine.drift": (
        "The baseline's latency changed by {drift} between its first and last look.",
        "首末两次观察之间,基线时延变化 {drift}。",
    ),
    "machine.baseline": ("baseline's latency in each trial, ms", "各试验中的基线时延 (ms)"),
    "machine.copies": ("second copy of the baseline against the first", "基线第二副本相对第一副本"),
    "machine.quiet": ("undisturbed", "未受干扰"),
    "machine.disturbed": ("disturbed by other load", "受其他负载干扰"),
    "machine.before": ("before trial", "在试验之前"),
    "machine.ratio": ("ratio", "比值"),
    "machine.noise": ("what disturbed it", "干扰"),
    "machine.described": (
        "{trials} baseline latencies, {looks} looks at the noise floor",
        "{trials} 个基线时延,{looks} 次噪声底观察",
    ),
    # The workers.
    "workers.title": ("Workers", "工作进程"),
    "workers.lead": ("{dies} on {hosts} shared the trials.", "试验由 {hosts}上的 {dies} 分担。"),
    "workers.now": (
        "Running now: {running}; waiting to be run again: {queued}.",
        "正在运行:{running};等待重新运行:{queued}。",
    ),
    "workers.die": ("die", "die"),
    "workers.host": ("host", "主机"),
    "workers.state": ("state", "状态"),
    "workers.trial": ("runs trial", "正在运行的试验"),
    "workers.since": ("since", "开始"),
    "workers.until": ("lease until", "租约至"),
    "workers.trials": ("trials done", "已完成试验"),
    "workers.baseline": ("median baseline, ms", "基线中位数 (ms)"),
    "workers.why": ("lost or quarantined", "丢失或隔离"),
    "workers.attempt": (", attempt {number}", ",第 {number} 次"),
    "workers.earlier": ("{count} times before", "此前 {count} 次"),
    "workers.is_running": ("running", "运行中"),
    "workers.is_free": ("free", "空闲"),
    "workers.is_ended": ("search ended", "搜索已结束"),
    "workers.is_lost": ("lost", "丢失"),
    "workers.is_quarantined": ("quarantined", "已隔离"),
    "workers.is_given_back": ("given to another search", "已让给其他搜索"),
    # Time.
    "gantt.title": ("Where the time went", "时间去向"),
    "gantt.lead": (
        "{seconds} s of trials and final comparison: {parts}. Loading the model is not included, nor are pauses.",
        "试验与最终对比共 {seconds} s:{parts}。不含加载模型的时间与搜索之间的停顿。",
    ),
    "gantt.worker": ("worker", "工作进程"),
    "gantt.stage": ("stage", "阶段"),
    "gantt.seconds": ("seconds", "秒"),
    "gantt.share": ("share", "占比"),
    "stage.compile": ("compile", "编译"),
    "stage.verify": ("verify", "验证"),
    "stage.measure": ("measure", "测量"),
    "stage.observe": ("observe scopes", "观察 Scope"),
    "stage.other": ("propose, store, wait", "提议、存储、等待"),
    "stage.final-open": ("final comparison: open the model", "最终对比：打开模型"),
    "stage.final-compile": ("final comparison: compile", "最终对比：编译"),
    "stage.final-verify": ("final comparison: verify", "最终对比：验证"),
    "stage.final-measure": ("final comparison: measure", "最终对比：测量"),
    # Two plans.
    "compared.title": ("Two plans compared", "两个方案对比"),
    "compared.lead": ("The best two; choose any others.", "最佳的两个;可选择其他。"),
    "compared.speedup": ("speedup", "加速比"),
    "compared.interval": ("95% interval", "95% 区间"),
    "compared.latency": ("ms per step", "ms/步"),
    "compared.outcome": ("outcome", "结果"),
    "compared.origin": ("origin", "来源"),
    "compared.scopes": ("scopes", "Scope 数"),
    "compared.options": ("options", "选项"),
    "compared.only": ("only in this plan", "仅此方案有"),
    "compared.more": ("and {count} more", "另有 {count} 个"),
    # Profiles.
    "steps.title": ("The step's timeline", "单步时间线"),
    "steps.lead": (
        "Every kernel of a profiled step by stream, before and after, on the same time axis.",
        "被采集单步的每个 kernel(按流),前后对照,同一时间轴。",
    ),
    "steps.before": ("before", "之前"),
    "steps.after": ("after", "之后"),
    "steps.superkernel": ("SuperKernel", "SuperKernel"),
    "steps.communication": ("communication", "通信"),
    "steps.kernel": ("other kernels", "其他 kernel"),
    "steps.gap": ("gap on the main stream", "主流空隙"),
    "steps.step_ms": ("step, ms", "单步 (ms)"),
    "steps.compute_ms": ("compute, ms", "计算 (ms)"),
    "steps.exposed_ms": ("exposed communication, ms", "暴露的通信 (ms)"),
    "steps.gap_ms": ("gaps, ms", "空隙 (ms)"),
    "steps.kernels": ("kernels", "kernel 数"),
    "steps.superkernels": ("SuperKernels", "SuperKernel 数"),
}
"""By key: English, then Chinese."""
