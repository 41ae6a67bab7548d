"""Records what graph-autofusion's own generator makes of random lists of sub-kernels, as facts: counts and refusals.

    python tests/golden/ge/record_code.py ROOT tests/golden/ge/code.json [SEED CASES]

ROOT is a folder with the generator's sources and its stand-ins for CANN, made as ``README.md`` says; the interpreter is
that of its environment. Nothing of the sources or of the generated code is recorded.
"""

import contextlib
import io
import json
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

SEED, CASES = 30, 640
VECTOR, CUBE = "dav-c220-vec", "dav-c220-cube"
TYPES = ("AIV_ONLY", "AIC_ONLY", "MIX_AIC_1_2", "MIX_AIC_1_1", "MIX_AIV_1_0", "MIX_AIC_1_0")
OPTIONS = (
    {}, {}, {"early-start": 0}, {"early-start": 2}, {"stream-fusion": 1}, {"stream-fusion": 1}, {"stream-fusion": 1},
    {"stream-fusion": 1, "feed-sync-all": 1}, {"stream-fusion": 1, "debug-sync-all": 1}, {"feed-sync-all": 1},
    {"preload-code": "max"}, {"preload-code": "none"}, {"split-mode": 1}, {"split-mode": 8}, {"debug-sync-all": 1},
    {"early-start": 0, "debug-sync-all": 1}, {"debug-aic-num": 24}, {"debug-aiv-num": 48},
    {"debug-aic-num": 24, "debug-aiv-num": 48}, {"debug-aic-num": 20, "debug-aiv-num": 20},
    {"debug-aic-num": 30, "debug-aiv-num": 60}, {"debug-aic-num": 10, "debug-aiv-num": 12},
    {"early-start": 0, "stream-fusion": 1}, {"func-align": 256}, {"profiling": 1}, {"debug-dcci-all": 1},
)  # fmt: skip
REFUSALS = {
    r"more than 2 real stream": "UNLINKED_STREAMS",
    r"self send/receive pair within 1 real stream": "EVENT_WITHIN_STREAM",
    r"send-recv event pair within 1 op": "EVENT_WITHIN_OPERATOR",
    r"can not same with recv op": "EVENT_WITHIN_OPERATOR",
    r"first op of super kernel": "FIRST_WAITS",
    r"last op of super kernel": "LAST_NOTIFIES",
    r"Should be 1:0 or 0:1": "CORES_RATIO",
    r"exceeds current platform": "CORES_OF_DEVICE",
    r"should not be less than max sub op": "CORES_OF_OPERATOR",
    r"get_wait_flag_for_chip": "UNDEFINED_NAME",
}


def random_case(rng: random.Random) -> tuple[list[dict], dict]:
    """Return sub-kernels and options."""
    count, streams = rng.randint(1, 6), rng.choice((1, 1, 1, 2, 2, 2, 3))
    kernels = []
    for _ in range(count):
        kind = rng.choices(TYPES, (6, 5, 3, 2, 1, 1))[0]
        kernels.append({
            "type": kind, "blocks": rng.randint(1, 48 if kind in ("AIV_ONLY", "MIX_AIV_1_0") else 24),
            "stream": rng.randrange(streams), "sends": [], "receives": [], "sync_all": rng.random() < 0.2,
            "text": rng.choice((1024, 4096, 8192, 20480, 40960)),
        })  # fmt: skip
    event = 0
    for after in range(1, count):
        for before in range(after):
            is_across = kernels[before]["stream"] != kernels[after]["stream"]
            if rng.random() < ((0.55 if after == before + 1 else 0.2) if is_across else 0.01):
                event += 1
                kernels[before]["sends"].append(event)
                kernels[after]["receives"].append(event)
    for place in range(count):
        if rng.random() < (0.12 if place else 0.03):
            event += 1
            kernels[place]["receives"].append(event)
        if rng.random() < (0.12 if place < count - 1 else 0.03):
            event += 1
            kernels[place]["sends"].append(event)
    if rng.random() < 0.02:
        kernels[-1]["sends"].append(999)
        kernels[-1]["receives"].append(999)
    fused = {"stream-fusion": 1} if streams > 1 and rng.random() < 0.5 else {}
    return kernels, fused | rng.choice(OPTIONS)


def counted(code: str, info: dict) -> dict:
    """Return the facts of generated code."""
    begin = code.index("auto_gen_")
    body = code[begin:]
    count = lambda pattern: len(re.findall(pattern, body))  # noqa: E731
    main = [match for match in re.findall(r"[^_]preload\(\(const void \*\)(\w+), (\d+)\)", body)
            if not re.search(r"_split\d+$", match[0])]  # fmt: skip
    return {
        "blocks": info["block_num"], "two_streams": "_kernel_aic(" in body or "_kernel_aiv(" in body,
        "barriers": {
            "mix": count(r"SyncAll<false>\(\);"),
            "cube": count(r"wait_flag_dev\(AscendC::SYNC_AIC_FLAG\)"),
            "vector": count(r"wait_flag_dev\(AscendC::SYNC_AIV_ONLY_ALL\)") + count(r"SyncAll<true>\(\);"),
        },
        "signals": {
            "cube": count(r"GetffstMsg\(0x02, AscendC::SYNC_AIC_AIV_FLAG"),
            "vector": count(r"GetffstMsg\(0x02, AscendC::SYNC_AIV_FLAG"),
        },
        "borders": dict(Counter(re.findall(r"g_super_kernel_early_start_config = (\d+);", body))),
        "waits": count(r"WaitFunc<\w+>\(param_base"), "notifies": count(r"NotifyFunc<\w+>\(param_base"),
        "lines": sum(int(lines) for _, lines in main) + 8 * count(r"AscendC::PreLoad\(8\)"),
        "fed": sorted({int(place) for place in (
            re.findall(r"ConfigGmBaseAddr \+ (\d+) \* 64;\n}\nif ASCEND_IS_AIV", re.sub(r"\n +", "\n", body)))}),
        "copies": 1 + max((int(number) for number in re.findall(r"void op\d+\w*_split(\d+)\(", code)), default=0),
    }  # fmt: skip


class Generator:
    """The generator, without binaries: sizes of code are given, not read."""

    def __init__(self, root: Path) -> None:
        sys.path[:0] = [str(root / "generator" / "stubs"), str(root / "devkit" / "tools" / "build"),
                        str(root / "gaf" / "super_kernel" / "src" / "jit"), str(root / "generator")]  # fmt: skip
        import importlib.util

        import sitecustomize  # noqa: F401 - the stand-in for the platform's library

        spec = importlib.util.spec_from_file_location("stand_in", root / "generator" / "stubs" / "sitecustomize.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        import drive
        from superkernel import super_kernel
        from superkernel import super_kernel_sub_op_infos as sub

        self._run, self._info, self._sizes = drive.run, {}, {}
        name_of = lambda path: re.sub(r"_split\d+$", "", Path(path).stem)  # noqa: E731
        sub.SubOperatorInfos.get_text_section_size = lambda _, path: min(self._sizes[name_of(path)], 16 * 1024)
        sub.SubOperatorInfos.extract_sub_bin_file = lambda *_: None
        sub.SubOperatorInfos.extract_sub_bin_file_of_mix_kernel = lambda *_: None
        super_kernel.compile_super_kernel = lambda info, _: self._info.update(info)

    def facts(self, kernels: list[dict], options: dict) -> dict:
        """Return what is generated, as facts, or the name of the refusal."""
        text = ":".join(f"{name}={value}" for name, value in options.items())
        starts_early = options.get("early-start", 1) == 1 and options.get("stream-fusion", 0) != 1
        with tempfile.TemporaryDirectory() as folder:
            listed = [
                self._kernel(Path(folder), place, each, options, starts_early) for place, each in enumerate(kernels)
            ]
            out = io.StringIO()
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                    self._run(text, f"{folder}/out", listed)
            except BaseException as failure:
                message = f"{failure} {out.getvalue()}"
                for pattern, name in REFUSALS.items():
                    if re.search(pattern, re.sub(r"\s+", " ", message)):
                        return {"refused": name}
                raise
            code = next(Path(folder).rglob("*_kernel.cpp")).read_text()
        facts = counted(code, self._info)
        kernel_types = ("AIV_ONLY", "AIC_ONLY", "", "", "MIX_AIV_1_0", "MIX_AIC_1_0", "MIX_AIC_1_1", "MIX_AIC_1_2")
        return {"type": kernel_types[self._info["kernel_type"]], **facts}

    def _kernel(self, folder: Path, place: int, each: dict, options: dict, starts_early: bool) -> dict:
        name = f"op{place}"
        kind = each["type"]
        both = {VECTOR: f"{name}_aiv", CUBE: f"{name}_aic"}
        functions = {"MIX_AIV_1_0": {VECTOR: f"{name}_aiv"}, "MIX_AIC_1_0": {CUBE: f"{name}_aic"}}.get(
            kind, {"AiCore": name} if kind.endswith("_ONLY") else both)  # fmt: skip
        self._sizes.update(dict.fromkeys(functions.values(), each["text"]))
        content = {
            "binFileName": name, "kernelName": f"{name}__kernel0", "blockDim": each["blocks"], "supportSuperKernel": 1,
            "sub_operator_params": ["p0", "p1"], "sub_operator_kernel_type": f"KERNEL_TYPE_{kind}",
            "sub_operator_kernel_name": {core: {"func_name": function, "obj_files": f"{function}.o"}
                                         for core, function in functions.items()},
            "sub_operator_early_start_set_flag": starts_early, "sub_operator_early_start_wait_flag": starts_early,
            "sub_op_with_sync_all": each["sync_all"], "split_mode": options.get("split-mode", 4),
        }  # fmt: skip
        path = folder / f"{name}.json"
        path.write_text(json.dumps(content))
        return {"bin_path": str(folder / f"{name}.o"), "json_path": str(path), "stream_id": each["stream"],
                "send_event_list": each["sends"], "recv_event_list": each["receives"]}  # fmt: skip


def main() -> None:
    """Write the facts of all cases."""
    seed, cases = map(int, sys.argv[3:5]) if len(sys.argv) > 3 else (SEED, CASES)
    generator, rng = Generator(Path(sys.argv[1]).resolve()), random.Random(seed)
    rows = []
    for _ in range(cases):
        kernels, options = random_case(rng)
        row = {"kernels": [list(each.values()) for each in kernels], "options": options}
        rows.append(json.dumps(row | {"facts": generator.facts(kernels, options)}, separators=(",", ":")))
    source = "mirror-cann/graph-autofusion 8d0b4fbc, mirror-cann/asc-devkit 82b89a15f; Ascend910_9391, 24 AIC, 48 AIV"
    text = f'{{"source": {json.dumps(source)}, "cases": [\n' + ",\n".join(rows) + "\n]}\n"
    Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
