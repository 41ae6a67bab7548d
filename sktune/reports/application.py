"""How to apply a plan: the Python code, or the environment of a program's command, with notes."""

import shlex

from sktune.backends import backend_info
from sktune.backends.options import step_options
from sktune.core.files import real_path
from sktune.core.plan import Plan
from sktune.core.plan_file import ARTIFACTS
from sktune.core.scope_flavour import ScopeFlavour
from sktune.launch import SITE
from sktune.program.sktune_program import npugraph_ex
from sktune.reports.figure import table_cell
from sktune.reports.plan_output import scope_flavour
from sktune.study.result import BEST_PLAN, SearchResult
from sktune.targets import Application
from sktune.targets.recipe import FLAG


def how_to_apply(result: SearchResult, plan: Plan) -> str:
    """Return how a user applies the plan, as Markdown."""
    if result.usage.application is Application.AT_START:
        block = apply_block(result, plan, str(real_path(result.folder / BEST_PLAN)))
        where = f", in `{table_cell(result.facts.directory)}`" if result.facts.directory else ""
        return f"\nStart the program with the plan{where}:\n\n{block}\n{_yaml_note(result)}"
    applied = f"\nApply it in Python, before the decode step is compiled:\n\n{apply_block(result, plan, BEST_PLAN)}\n"
    delivered = _delivered(result)
    return f"{applied}\n{delivered}" if delivered else applied


def _delivered(result: SearchResult) -> str:
    """Return whether the plan comes with compiled code, and how to check it again."""
    if result.is_simulated or result.facts.target is None:
        return ""
    recheck = f"`sktune recheck {BEST_PLAN}` checks code, bits and speed again, for instance after an upgrade."
    if result.delivery:
        return (
            f"The verified code is in `{ARTIFACTS}`, next to the plan: on a machine of this kind `apply` loads it and "
            f"recompiles no kernel. {recheck}\n"
        )
    problem = result.facts.delivery.problem if result.facts.delivery else ""
    return (f"The plan comes without compiled code ({table_cell(problem)}). " if problem else "") + f"{recheck}\n"


def _yaml_note(result: SearchResult) -> str:
    """Return how the YAML of a recipe's runs differed from the program's own."""
    if not (changed := result.facts.yaml):
        return ""
    others = "".join(f", `{table_cell(f'{name}: {value}')}`" for name, value in changed["set"].items())
    return (
        f"\nThe search set `{FLAG}: False`{others} in `{table_cell(changed['file'])}`: the plan's scopes replace the "
        "program's own.\n"
    )


def apply_block(result: SearchResult, plan: Plan, file: str) -> str:
    """Return a Markdown code block that applies the plan in ``file`` without editing the source."""
    if result.usage.application is Application.IN_PYTHON:
        return f"```python\n{apply_code(plan, scope_flavour(result), file)}\n```"
    variables = dict(result.facts.environment)
    own = variables.pop("PYTHONPATH", "")
    site = f"PYTHONPATH={shlex.quote(str(SITE))}" + (f":{shlex.quote(own)}" if own else "")
    exports = [
        f"{site}${{PYTHONPATH:+:$PYTHONPATH}}",
        *(f"{name}={shlex.quote(variables[name])}" for name in variables),
    ]
    lines = [*(f"export {each}" for each in exports), f"SKTUNE_PLAN={shlex.quote(file)} {result.facts.command}"]
    return "```bash\n" + "\n".join(lines) + "\n```"


def apply_code(plan: Plan, flavour: ScopeFlavour, file: str) -> str:
    """Return the Python code that applies and compiles the plan in ``file``."""
    code = [f'sktune.apply(model, "{file}")']
    compiler = '"sktune"'
    if flavour is ScopeFlavour.SUPERKERNEL:
        options = step_options(backend_info(flavour).options, plan)
        code.insert(0, "import torch_npu, torchair\n")
        code += ["config = torchair.CompilerConfig()", 'config.mode = "max-autotune"']
        code += [f"config.experimental_config.{name} = {value!r}" for name, value in options.items()]
        compiler = "torchair.get_npu_backend(compiler_config=config)"
    if flavour is ScopeFlavour.CAPTURED:
        code.insert(0, "import torch_npu\n")
        graph_options = npugraph_ex.compile_options(dict(plan.options), {}, has_scopes=bool(plan.scopes))
        compiler = f'"{npugraph_ex.NPUGRAPH_EX}", options={graph_options!r}'
    code.append(f"step = torch.compile(decode_step, backend={compiler}, fullgraph=True, dynamic=False)")
    return "\n".join(code)
