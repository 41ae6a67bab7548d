"""All sentences of an analysis, in both languages."""

from sktune.core.language import Texts

SENTENCES: Texts = {
    # Options of the guide.
    "option.attention_only": ("attention only", "仅 Attention 模块"),
    "option.moe_only": ("MoE only", "仅 MoE 模块"),
    "option.attention_moe": ("attention + MoE", "Attention + MoE"),
    "option.whole_layer": ("whole layer (a scope for each layer)", "整个 Decoder 层(每层一个 Scope)"),
    "option.all_layers": ("all layers (one scope)", "全 Decoder 层(一个 Scope)"),
    "option.custom": ("custom (found by the search)", "自定义(由搜索得到)"),
    "option.none": ("no scope", "不使用 Scope"),
    # Their results.
    "status.passed": ("passed", "通过"),
    "status.simulated": ("simulated, bits not compared", "仿真,未逐位对比"),
    "status.slower": ("slower than the baseline", "比基线慢"),
    "status.mismatch": ("bits differ", "结果与基线不逐位一致"),
    "status.compile_failed": ("does not compile", "编译失败"),
    "status.timeout": ("timeout", "超时"),
    "status.crashed": ("crashed", "进程崩溃"),
    "status.not_reached": ("not reached in time", "时间预算内未测到"),
    "status.none_passed": ("no other plan passed", "没有其他方案通过"),
    "status.no_moe": ("the model has no MoE", "模型没有 MoE"),
    "status.no_attention": ("no unit is named as attention", "没有名为 Attention 的模块"),
    "status.no_layers": ("the model has no decoder layers", "模型没有 Decoder 层"),
    # The backend.
    "backend.asked": ("Backend {backend} on {device}: as requested.", "后端 {backend}({device}):按要求使用。"),
    "backend.recipe": (
        "Backend {backend} on {device}: the recipe's program runs on it.",
        "后端 {backend}({device}):配方中的程序所用的后端。",
    ),
    "backend.npu": ("Backend npu: this machine has an NPU.", "后端 npu:本机有 NPU。"),
    "backend.captured": (
        "Backend npugraph-ex: this machine has an NPU, and the YAML's mode is npugraph_ex.",
        "后端 npugraph-ex:本机有 NPU,且 YAML 的模式为 npugraph_ex。",
    ),
    "backend.cuda": (
        "Backend {backend} on {device}: this machine has no usable NPU; the GPU stands in for it.",
        "后端 {backend}({device}):本机没有可用的 NPU,用 GPU 代替。",
    ),
    "backend.cpu": (
        "Backend {backend} on {device}: this machine has no usable NPU or GPU; the CPU stands in for them.",
        "后端 {backend}({device}):本机没有可用的 NPU 和 GPU,用 CPU 代替。",
    ),
    "backend.full_scale": (
        "Backend sim: there is no NPU, so the model is simulated at its published size.",
        "后端 sim:没有 NPU,对公布规模的模型进行仿真。",
    ),
    "backend.no_compiler": (
        "Backend sim: this machine has neither a usable NPU nor a compiler for Inductor.",
        "后端 sim:本机没有可用的 NPU,也没有 Inductor 所需的编译器。",
    ),
    # The path through the guide's decision tree.
    "tree.model_type.moe": ("Model type? MoE: {kinds}.", "模型类型?MoE 模型:{kinds}。"),
    "tree.model_type.standard": (
        "Model type? Standard transformer: {kinds}.",
        "模型类型?标准 Transformer:{kinds}。",
    ),
    "tree.model_type.other": (
        "Model type? Other: no attention was recognised in its layers ({kinds}).",
        "模型类型?其他模型:各层中没有识别出 Attention({kinds})。",
    ),
    "tree.moe_bottleneck.yes": (
        "Is MoE the bottleneck? Yes: it takes {moe} of the step, attention {attention}.",
        "MoE 是性能瓶颈?是:MoE 占单步耗时 {moe},Attention 占 {attention}。",
    ),
    "tree.moe_bottleneck.no": (
        "Is MoE the bottleneck? No: it takes {moe} of the step, attention {attention}, dense FFN {ffn}.",
        "MoE 是性能瓶颈?否:MoE 占单步耗时 {moe},Attention 占 {attention},稠密 FFN 占 {ffn}。",
    ),
    "tree.moe_bottleneck.unknown": (
        "Is MoE the bottleneck? Unknown: the times of the modules are not known; give a profile with --profile.",
        "MoE 是性能瓶颈?未知:没有各模块的耗时,可用 --profile 给出性能数据。",
    ),
    "tree.first_attempt.yes": ("First attempt? Yes.", "首次尝试?是。"),
    "tree.first_attempt.no": ("First attempt? No.", "首次尝试?否。"),
    "tree.attention_passed.yes": (
        "Did attention alone pass? Yes, in this study.",
        "Attention 验证成功?是,在本次搜索中通过。",
    ),
    "tree.attention_passed.no": ("Did attention alone pass? No.", "Attention 验证成功?否。"),
    "tree.attention_passed.unknown": (
        "Did attention alone pass? Unknown: only a trial on a device can show it.",
        "Attention 验证成功?未知,需要在设备上试验。",
    ),
    "tree.best_performance.yes": ("Best performance wanted? Yes.", "追求最优性能?是。"),
    "tree.best_performance.no": ("Best performance wanted? No.", "追求最优性能?否。"),
    "tree.choice": ("The guide's decision tree leads to: {option}.", "决策树的结论:{option}。"),
    "tree.shares": (
        "Shares of the decode step ({source}): attention {attention}, MoE {moe}, dense FFN {ffn}, other units {other}.",
        "单步耗时占比({source}):Attention {attention},MoE {moe},稠密 FFN {ffn},其他模块 {other}。",
    ),
    "tree.largest": (
        "Most of the time is spent in {module}: the guide's third method starts there.",
        "耗时最多的是 {module}:指南方法三从这里开始。",
    ),
    "module.attention": ("attention", "Attention"),
    "module.moe": ("MoE", "MoE"),
    "module.ffn": ("the dense FFN", "稠密 FFN"),
    "source.profile": ("from the profile", "来自性能数据"),
    "source.traced": ("from the traced eager step", "来自 eager 单步追踪"),
    "source.simulated": ("simulated", "仿真"),
    "profile": (
        (
            "Profile: a step takes {step_ms} ms, its bottleneck is {bottleneck}; the device is idle for {gap_share} "
            "of it, the most that scopes can save by closing gaps."
        ),
        "性能数据:单步 {step_ms} ms,瓶颈是 {bottleneck};其中 {gap_share} 的时间设备空闲,是 Scope 消除间隙的上限。",
    ),
    # How far figures can be trusted.
    "figures.sim": (
        (
            "SIMULATED: a model of Atlas A3 computed all figures, and no bits were compared. Measure on an NPU before "
            "you rely on them."
        ),
        "仿真数据:所有数值由 Atlas A3 模型计算得出,没有做逐位对比。使用前必须在 NPU 上实测。",
    ),
    "figures.stand_in": (
        (
            "STAND-IN: no NPU was used. Scopes are regions that Inductor compiles on {device}: speedups and equal bits "
            "hold there, and say little about SuperKernels. Measure on an NPU before you rely on them."
        ),
        (
            "替代数据:没有使用 NPU。Scope 是 Inductor 在 {device} 上编译的区域,性能与逐位一致性只在该设备上成立,"
            "不能代表 SuperKernel。使用前必须在 NPU 上实测。"
        ),
    ),
    "figures.npu": ("Measured on {device}.", "在 {device} 上实测。"),
    # The recommendation.
    "why.winner": (
        "It won the search: {speedup}x over the baseline{interval}.",
        "它是搜索的优胜方案:为基线的 {speedup}x{interval}。",
    ),
    "why.first": (
        "The guide's tree chooses it for a first attempt, and it is faster: {speedup}x over the baseline{interval}.",
        "首次尝试时决策树指向它,且确定更快:为基线的 {speedup}x{interval}。",
    ),
    "why.next_narrowest": (
        (
            "The tree's choice ({choice}) did not prove faster; this is the narrowest option that did: {speedup}x over "
            "the baseline{interval}."
        ),
        "决策树指向的 {choice} 未证实更快;在证实更快的选项中它的范围最小:为基线的 {speedup}x{interval}。",
    ),
    "why.none": (
        "No plan that was tried is significantly faster than the baseline: leave the model unchanged.",
        "已试的方案都不能确定比基线快:保持模型不变。",
    ),
    "interval": (" (95% interval {low}x to {high}x)", "(95% 置信区间 {low}x 至 {high}x)"),
    "simulated": (" (simulated)", "(仿真)"),
    "recommendation": ("Recommended: {option}.", "推荐:{option}。"),
    "better_left": (
        "The best plan found is {option} with {speedup}x: once this one works, run again with --goal best.",
        "目前找到的最优方案是 {option}({speedup}x):本方案可用后再以 --goal best 运行。",
    ),
    # Risks.
    "risk.simulated": (
        "All figures are simulated; bits were not compared.",
        "所有数值都是仿真结果,没有做逐位对比。",
    ),
    "risk.stand_in": (
        "Speedups and equal bits are those of a stand-in ({device}), not of an NPU.",
        "性能与逐位一致性来自替代设备({device}),不是 NPU。",
    ),
    "risk.small_model": (
        "The search ran on a reduced model: {description}.",
        "被搜索的是缩小的模型:{description}。",
    ),
    "risk.other_model": (
        "The search ran on {model}, not on the code in {folder}: their units must correspond.",
        "搜索使用的是 {model},不是 {folder} 中的代码:模块必须相互对应。",
    ),
    "risk.mismatch": (
        "{count} of {trials} plans changed bits, blamed on: {blamed}. Compare the outputs again on the NPU.",
        "{trials} 个方案中有 {count} 个改变了结果,原因在:{blamed}。请在 NPU 上再次对比输出。",
    ),
    "risk.failed": (
        "{count} of {trials} plans failed ({reasons}), blamed on: {blamed}. Wider scopes may also fail on the NPU.",
        "{trials} 个方案中有 {count} 个失败({reasons}),原因在:{blamed}。更大的 Scope 在 NPU 上也可能失败。",
    ),
    "risk.not_compared": (
        "The recommended plan was not in a final comparison: its figure is from the trial, and optimistic.",
        "推荐方案没有经过最终对比:数值来自其单次试验,偏乐观。",
    ),
    "risk.few_processes": (
        "The final comparison ran in {count} of {wanted} processes: too few to show how processes differ.",
        "最终对比只运行了 {count} 个进程(计划 {wanted} 个):置信区间对进程间差异了解不足。",
    ),
    "risk.not_reached": (
        "Not reached in time: {options}. Continue with more time.",
        "时间预算内未测到:{options}。请增加时间继续。",
    ),
    "risk.noise": (
        "Other load disturbed {count} of {trials} trials and {finals} of {processes} final processes.",
        "{trials} 次试验中有 {count} 次,{processes} 个最终对比进程中有 {finals} 个,受到机器上其他负载的干扰。",
    ),
    "risk.below_bar": (
        "{improvement}% is below the 10% that the guide requires of a scope.",
        "{improvement}% 低于指南对 Scope 的要求(10%)。",
    ),
    "risk.options": (
        "Options {options} are not in TorchAir's documentation: try them on the installed CANN first.",
        "选项 {options} 不在 TorchAir 文档中:请在所装的 CANN 上先行验证。",
    ),
    "risk.inductor_options": (
        "Options {options} are Inductor's, and do not apply on the NPU.",
        "选项 {options} 属于 Inductor,在 NPU 上不使用。",
    ),
    "risk.batch": (
        "The YAML has batch_size {yaml}, {die} on each die, and the search used {searched}: pass --batch {die}.",
        "YAML 的 batch_size 是 {yaml},每个 die 上 {die},搜索用的是 {searched}:请使用 --batch {die}。",
    ),
    "risk.draft": (
        "next_n is {next_n}: draft layers get no scope, and the figures do not include their time.",
        "next_n 为 {next_n}:草稿(MTP)层不加 Scope,其耗时不在数值中。",
    ),
    "risk.mode": (
        "exe_mode is {mode}: scopes take effect only in ge_graph.",
        "exe_mode 是 {mode}:Scope 只在 ge_graph 下生效。",
    ),
    "risk.prefill": (
        "Prefill was not measured and must not be in a scope: keep the is_prefill condition.",
        "没有测试 Prefill;Prefill 不能进入 Scope,请保留 is_prefill 条件。",
    ),
    "risk.one_device": (
        "The search ran on one device: the figures do not include collectives and slower ranks of a parallel run.",
        "只在单个设备上搜索:多卡的集合通信和慢 rank 不在数值中。",
    ),
    "risk.kernel_by_kernel": (
        "The baseline is the decode step without scopes, kernel by kernel, not the program's own torch.compile.",
        "基线是不带 Scope、逐算子编译的 Decode 单步,不是程序自己的 torch.compile。",
    ),
    "risk.one_host": (
        "The figures are those of the hosts of one run: collectives with further hosts are not included.",
        "数值只涉及一次运行所用的主机:与其他主机的集合通信不在数值中。",
    ),
    "none_blamed": ("no single scope", "无法归于单个 Scope"),
    # Next commands.
    "next.apply": ("Show the source change; with --write, make it:", "查看源码改动,加 --write 写入:"),
    "next.search": ("Continue the search:", "继续搜索:"),
    "next.npu": ("Measure on a machine with an NPU:", "在有 NPU 的机器上实测:"),
    "next.show": ("Show what the study has learned:", "查看搜索学到的规律:"),
    "next.best": ("Then search for the best performance:", "然后追求最优性能:"),
    # The report.
    "title": ("SuperKernel optimization report", "SuperKernel 优化报告"),
    "head.configuration": ("Optimization configuration", "优化配置"),
    "head.decision": ("Scope decision", "Scope 决策"),
    "head.change": ("Code changes", "代码修改"),
    "head.results": ("Performance results", "性能测试结果"),
    "head.baseline": ("Baseline", "基线"),
    "head.optimized": ("Optimized", "优化后"),
    "head.improvement": ("Improvement", "提升"),
    "head.options": ("Scope options", "各 Scope 选项"),
    "head.conclusion": ("Conclusion", "结论"),
    "head.risks": ("Risks", "风险"),
    "head.usage": ("How to use", "使用说明"),
    "item": ("item", "项目"),
    "value": ("value", "值"),
    "item.model": ("model", "模型"),
    "item.backend": ("backend and device", "后端与设备"),
    "item.study": ("study", "调优记录"),
    "item.trials": ("plans tried", "已试方案数"),
    "item.scope": ("scope", "Scope 范围"),
    "item.scopes": ("scopes", "Scope 列表"),
    "item.options": ("options", "选项"),
    "item.bits": ("Bits", "逐位一致性"),
    "bits": (
        "identical to the baseline on {steps} decode steps; with 95% confidence fewer than 1 step in {one_in} differs",
        "与基线在 {steps} 个解码步上逐位一致;95% 置信度下,不一致的步少于 {one_in} 步中的 1 步",
    ),
    "bits.model": (
        "the baseline differs from the uncompiled model: {difference}",
        "基线本身与未编译的模型不逐位一致:{difference}",
    ),
    "item.folder": ("model folder", "模型目录"),
    "item.yaml": ("YAML", "YAML"),
    "item.exe_mode": ("exe_mode", "exe_mode"),
    "item.enable_superkernel": ("enable_superkernel (current value)", "enable_superkernel(当前值)"),
    "item.batch_size": ("batch_size", "batch_size"),
    "item.next_n": ("next_n", "next_n"),
    "not_known": ("unknown", "未知"),
    "metric": ("metric", "指标"),
    "decode_latency": ("decode step latency", "Decode 单步耗时"),
    "throughput": ("throughput", "吞吐"),
    "tokens_per_s": ("tokens/s", "tokens/s"),
    "prefill": ("prefill latency", "Prefill 耗时"),
    "memory": ("memory", "显存"),
    "compile_time": ("compile time", "编译时间"),
    "not_measured": ("not measured", "未测"),
    "speedup": ("speedup", "加速比"),
    "formula": (
        "Improvement = (baseline - optimized) / baseline.",
        "提升 = (基线 - 优化后) / 基线。",
    ),
    "options_note": (
        (
            "Each row is the option's own trial; the best of many trials looks better than it is. `final` is the "
            "speedup in the final comparison, for plans that were in it."
        ),
        "每行是该选项自己的试验;多次试验中的最好值偏乐观。“最终对比”列是进入最终对比的方案的加速比。",
    ),
    "column.option": ("option", "选项"),
    "column.trial": ("trial", "试验编号"),
    "column.result": ("result", "结果"),
    "column.latency": ("ms per step", "单步耗时 ms"),
    "column.baseline": ("baseline ms", "基线 ms"),
    "column.speedup": ("speedup", "加速比"),
    "column.improvement": ("improvement", "提升"),
    "column.final": ("final", "最终对比"),
    "same_as_winner": ("recommended", "推荐"),
    "change.diff": ("`sktune apply` makes this change:", "`sktune apply` 将做如下修改:"),
    "change.nothing": ("The source already contains the plan.", "源码中已经是该方案。"),
    "change.refused": (
        "The plan cannot be written into this source: {reason}",
        "该方案无法写入此源码:{reason}",
    ),
    "change.in_python": (
        "Without editing the source, before the decode step is compiled:",
        "不修改源码的方式,在编译 Decode 单步之前:",
    ),
    "change.at_start": (
        "Without editing the source, when the program is started:",
        "不修改源码的方式,在启动程序时:",
    ),
    "change.none": ("No plan is recommended: there is nothing to change.", "没有推荐方案:无需修改。"),
    "change.no_folder": (
        "No model folder was given (--dir).",
        "没有给出模型目录(--dir)。",
    ),
    "usage.decode_only": (
        "Scopes take effect only in the decode step, with exe_mode ge_graph and enable_superkernel True.",
        "Scope 只在 Decode 阶段生效,需要 exe_mode 为 ge_graph、enable_superkernel 为 True。",
    ),
    "usage.plan": ("The plan and its evidence: `{plan}`.", "方案及其证据:`{plan}`。"),
    "usage.study": (
        "All figures are in the study `{study}` (`{folder}`).",
        "所有数值都在调优记录 `{study}` (`{folder}`)中。",
    ),
    "files": ("Files: {files}", "文件:{files}"),
}
