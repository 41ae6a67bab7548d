// Reads captured graphs as JSON, one per line, and prints what graph-autofusion makes SuperKernels of.
//
// It only calls graph-autofusion, and stands in for the runtime: streams, tasks, kernels and device memory are those of
// the JSON. Building kernels is left out, as they need Ascend's compiler. README.md says how it is built.

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#define private public
#define protected public
#include "super_kernel.h"
#include "sk_event_recorder.h"
#include "sk_graph.h"
#include "sk_lock_detector.h"
#include "sk_model_context.h"
#include "sk_optimizer.h"
#include "sk_options_manager.h"
#include "sk_resource_manager.h"
#include "sk_scope_kernel_types.h"
#include "sk_scope_split.h"

using Json = nlohmann::ordered_json;

namespace {

const uint64_t kBinaryAddress = 0x1000, kKnownOffset = 0x100, kUnknownOffset = 0x200;
const auto kBinary = reinterpret_cast<aclrtBinHandle>(uintptr_t{0x10});
const auto kBinaryWithoutMap = reinterpret_cast<aclrtBinHandle>(uintptr_t{0x20});

struct Function {
  std::string name;
  int64_t type = ACL_KERNEL_TYPE_VECTOR;
  int16_t vectorsPerCube = 0;
  aclrtBinHandle binary = kBinaryWithoutMap;
  uint64_t offset = kUnknownOffset;
};

struct Task {
  size_t place = 0;
  uint32_t id = 0;
  aclmdlRITaskType type = ACL_MODEL_RI_TASK_DEFAULT;
  aclmdlRITaskParams params{};
  Function function;
  ScopeKernelArgs arguments;
  bool needsAllCores = false;
};

std::deque<Task> tasks;
std::vector<std::vector<Task *>> streams;
int64_t cubeCores = 24, vectorCores = 48;
size_t currentPlace = 0;
Json superkernels = Json::array();

Task &Append(size_t stream, aclmdlRITaskType type) {
  tasks.emplace_back();
  Task &task = tasks.back();
  task.place = currentPlace;
  task.id = static_cast<uint32_t>(tasks.size() - 1);
  task.type = type;
  task.params.type = type;
  streams[stream].push_back(&task);
  return task;
}

void AppendKernel(Task &task, uint32_t blocks) {
  task.params.kernelTaskParams.funcHandle = &task.function;
  task.params.kernelTaskParams.args = &task.arguments;
  task.params.kernelTaskParams.numBlocks = blocks;
}

void LaunchMarker(void *stream, const ScopeKernelArgs &arguments, const char *name) {
  Task &task = Append(reinterpret_cast<uintptr_t>(stream) - 1, ACL_MODEL_RI_TASK_KERNEL);
  task.function.name = name;
  task.arguments = arguments;
  AppendKernel(task, 1);
}

void AppendOperator(const Json &each, size_t stream) {
  Task &task = Append(stream, ACL_MODEL_RI_TASK_KERNEL);
  const std::string core = each["core"];
  task.function.name = "k" + std::to_string(currentPlace);
  const std::map<std::string, int64_t> types = {
      {"cube", ACL_KERNEL_TYPE_CUBE}, {"vector", ACL_KERNEL_TYPE_VECTOR}, {"other", ACL_KERNEL_TYPE_AICORE}};
  const auto type = types.find(core);
  task.function.type = type == types.end() ? ACL_KERNEL_TYPE_MIX : type->second;
  task.function.vectorsPerCube = core == "mix1" ? 1 : core == "mix2" ? 2 : 0;
  if (!each.value("no_map", false)) {
    task.function.binary = kBinary;
    task.function.offset = each.value("not_built", false) ? kUnknownOffset : kKnownOffset;
  }
  task.needsAllCores = each.value("sync_all", false);
  if (each.value("dynamic", false)) task.params.taskGrp = &task;
  AppendKernel(task, each["blocks"]);
}

void AppendEvent(const Json &each, size_t stream, const std::string &kind) {
  const auto type = kind == "record" ? ACL_MODEL_RI_TASK_EVENT_RECORD
                    : kind == "wait" ? ACL_MODEL_RI_TASK_EVENT_WAIT
                                     : ACL_MODEL_RI_TASK_EVENT_RESET;
  Task &task = Append(stream, type);
  task.params.eventRecordTaskParams.event = reinterpret_cast<aclrtEvent>(each["event"].get<uintptr_t>());
  task.params.eventRecordTaskParams.eventFlag = each.value("external", false) ? ACL_EVENT_EXTERNAL : 0;
}

void AppendValue(const Json &each, size_t stream, const std::string &kind) {
  Task &task = Append(stream, kind == "write" ? ACL_MODEL_RI_TASK_VALUE_WRITE : ACL_MODEL_RI_TASK_VALUE_WAIT);
  auto *address = reinterpret_cast<void *>(each["event"].get<uintptr_t>());
  if (kind == "write") {
    task.params.valueWriteTaskParams = {address, each["value"].get<uint64_t>()};
  } else {
    task.params.valueWaitTaskParams = {address, each["value"].get<uint64_t>(), each["flag"].get<uint32_t>()};
  }
}

aclError Capture(const Json &each) {
  const std::string kind = each["kind"];
  const size_t stream = each["stream"];
  auto *handle = reinterpret_cast<aclrtStream>(stream + 1);
  if (kind == "begin" || kind == "end") {
    const bool isNamed = !each["name"].is_null();
    const std::string name = isNamed ? each["name"].get<std::string>() : "";
    return (kind == "begin" ? aclskScopeBegin : aclskScopeEnd)(isNamed ? name.c_str() : nullptr, handle);
  }
  if (kind == "kernel") {
    AppendOperator(each, stream);
  } else if (kind == "record" || kind == "wait" || kind == "reset") {
    AppendEvent(each, stream, kind);
  } else if (kind == "write" || kind == "wait_value") {
    AppendValue(each, stream, kind);
  } else {
    Append(stream, ACL_MODEL_RI_TASK_DEFAULT);
  }
  return ACL_SUCCESS;
}

aclskOption Option(aclskOptionType type, uint32_t value) {
  aclskOption option{};
  option.optionType = type;
  option.preload.preloadMode = value;
  return option;
}

std::vector<aclskOption> Options(const Json &given) {
  std::vector<aclskOption> options;
  options.push_back(Option(aclskOptionType::AUTO_OP_PARALLEL, given.value("auto_op_parallel", 0U)));
  options.push_back(Option(aclskOptionType::DEBUG_PER_OP_MAX_CORE_NUM, given.value("debug_per_op_max_core_num", 0U)));
  options.push_back(Option(aclskOptionType::AGGRESSIVE_OPT_STRATEGIES, 0));
  options.back().aggressiveOpts = {given.value("event_breaker_bypass", 0U), given.value("value_breaker_bypass", 0U),
                                   given.value("task_breaker_bypass", 0U)};
  return options;
}

Json Places(const std::vector<SuperKernelBaseNode *> &nodes) {
  Json places = Json::array();
  for (const auto *node : nodes) {
    const size_t place = tasks[node->GetNodeId()].place;
    if (places.empty() || places.back() != place) places.push_back(place);
  }
  return places;
}

Json Reasons(const SuperKernelGraph &graph) {
  Json reasons = Json::array();
  for (const Task &task : tasks) {
    const auto *node = graph.GetNodeById(task.id);
    if (node == nullptr || node->IsScopeNode()) continue;
    const auto &info = node->GetFusionFailReasonInfo();
    if (node->IsFusible() && info.primary == FusionFailReason::CAN_FUSE) continue;
    reasons.push_back({task.place, FusionFailReasonToStr(info), node->IsFusible()});
  }
  return reasons;
}

Json Groups(const SuperKernelGraph &graph, const std::vector<SuperKernelScopeInfo> &scopes) {
  Json groups = Json::array();
  for (const auto &scope : scopes) {
    const auto &reason = scope.GetBreakInfo();
    const uint64_t trigger = reason.GetTriggerNodeId();
    groups.push_back({{"name", ScopeSplitPass::GetScopeNamesFromBitFlags(scope.GetScopeBitFlags(), graph)},
                      {"tasks", Places(scope.GetNodes())},
                      {"status", to_string(scope.GetExtInfo().processStatus)},
                      {"cut", to_string(reason.GetReason())},
                      {"at", trigger == INVALID_TASK_ID ? Json() : Json(tasks[trigger].place)}});
  }
  return groups;
}

Json Split(const Json &given) {
  auto *model = reinterpret_cast<aclmdlRI>(uintptr_t{0x5000});
  const SkModelContext context(model);
  SkResourceManager::SetCurrentModel(model);
  SkResourceManager::CallbackRegister(model);
  std::vector<aclskOption> list = Options(given);
  const aclskOptions options{list.data(), list.size()};
  SuperKernelOptionsManager manager;
  manager.ParseOptions(&options);
  SuperKernelGraph graph(model, manager);
  if (!graph.InitSKGraph()) return {{"failed", "graph"}};
  if (LockDetector::GetDeviceCores() != ACL_SUCCESS) return {{"failed", "cores"}};
  SuperKernelOptimizer optimizer(manager);
  if (!optimizer.Process(graph)) return {{"failed", "split"}};
  const Json groups = Groups(graph, optimizer.GetScopeInfos());
  return {{"superkernels", superkernels}, {"groups", groups}, {"left", Reasons(graph)}};
}

Json Run(const Json &graph) {
  streams.resize(graph["streams"]);
  cubeCores = graph["cores"][0];
  vectorCores = graph["cores"][1];
  for (const Json &each : graph["tasks"]) {
    if (Capture(each) != ACL_SUCCESS) return {{"failed", "marker"}};
    ++currentPlace;
  }
  return Split(graph["options"]);
}

Json OptionsAfter(const Json &given) {
  std::vector<aclskOption> list;
  std::deque<std::string> texts;
  std::deque<std::vector<char *>> names;
  for (const Json &each : given) {
    const auto type = static_cast<aclskOptionType>(each["type"].get<uint32_t>());
    const Json &value = each["value"];
    aclskOption option{};
    option.optionType = type;
    if (value.is_string()) {
      texts.push_back(value);
      option.optExtend.value = texts.back().data();
    } else if (value.is_array() && type == aclskOptionType::AGGRESSIVE_OPT_STRATEGIES) {
      option.aggressiveOpts = {value[0], value[1], value[2]};
    } else if (value.is_array()) {
      names.emplace_back();
      for (const Json &name : value) {
        texts.push_back(name);
        names.back().push_back(texts.back().data());
      }
      if (type == aclskOptionType::UBUF_LOCK_IGNORE_KERNEL) {
        option.ubufLockIgnoreKernel = {static_cast<uint32_t>(names.back().size()), names.back().data()};
      } else {
        option.disableKernelDcci = {names.back().data(), names.back().size()};
      }
    } else {
      option.preload.preloadMode = value.get<uint32_t>();
    }
    list.push_back(option);
  }
  const aclskOptions options{list.data(), list.size()};
  SuperKernelOptionsManager manager;
  manager.ParseOptions(&options);
  Json read = manager.ToJson();
  const auto *strategies = manager.GetOption(aclskOptionType::AGGRESSIVE_OPT_STRATEGIES);
  const auto &bypass = static_cast<const AggressiveOptStrategiesOption *>(strategies)->GetValue();
  return {{"read", read}, {"bypass", {bypass.eventBreakerBypass, bypass.valueBreakerBypass, bypass.taskBreakerBypass}}};
}

Json Matches(const Json &given) {
  Json found = Json::array();
  for (const Json &each : given) {
    found.push_back(SuperKernelOptionsManager::MatchRegex(each[0].get<std::string>(), each[1].get<std::string>()));
  }
  return found;
}

Json Answer(const Json &question) {
  if (question.contains("set")) return OptionsAfter(question["set"]);
  if (question.contains("match")) return Matches(question["match"]);
  return Run(question);
}

}  // namespace

bool SuperKernelOptimizer::Schedule(SuperKernelScopeInfo &scope, SuperKernelGraph &graph, SkTaskBuilder &builder) {
  const auto nodes = ReorderWaitNodesForTaskBuild(scope.GetExtInfo().filteredNodes);
  superkernels.push_back({{"name", GetSkFuncName(nodes, 0, scope.GetExtInfo().scopeName)},
                          {"tasks", Places(nodes)},
                          {"at", tasks[scope.GetExtInfo().skMainNodeId].place}});
  return true;
}

extern "C" {

aclError aclmdlRIGetStreams(aclmdlRI, aclrtStream *handles, uint32_t *count) {
  *count = static_cast<uint32_t>(streams.size());
  for (size_t each = 0; handles != nullptr && each < streams.size(); ++each) {
    handles[each] = reinterpret_cast<aclrtStream>(each + 1);
  }
  return ACL_SUCCESS;
}

aclError aclmdlRIGetTasksByStream(aclrtStream stream, aclmdlRITask *handles, uint32_t *count) {
  const auto &own = streams[reinterpret_cast<uintptr_t>(stream) - 1];
  *count = static_cast<uint32_t>(own.size());
  for (size_t each = 0; handles != nullptr && each < own.size(); ++each) handles[each] = own[each];
  return ACL_SUCCESS;
}

aclError aclmdlRITaskGetType(aclmdlRITask task, aclmdlRITaskType *type) {
  *type = static_cast<Task *>(task)->type;
  return ACL_SUCCESS;
}

aclError aclmdlRITaskGetParams(aclmdlRITask task, aclmdlRITaskParams *params) {
  *params = static_cast<Task *>(task)->params;
  return ACL_SUCCESS;
}

aclError aclmdlRITaskGetSeqId(aclmdlRITask task, uint32_t *id) {
  *id = static_cast<Task *>(task)->id;
  return ACL_SUCCESS;
}

aclError aclmdlRIKernelTaskGetAttribute(aclmdlRITask task, aclrtLaunchKernelAttrId, aclrtLaunchKernelAttrValue *value) {
  std::memset(value, 0, sizeof(*value));
  value->schemMode = static_cast<Task *>(task)->needsAllCores ? 1 : 0;
  return ACL_SUCCESS;
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t *id) {
  *id = static_cast<int32_t>(reinterpret_cast<uintptr_t>(stream));
  return ACL_SUCCESS;
}

aclError aclrtGetFunctionName(aclrtFuncHandle function, uint32_t size, char *name) {
  std::strncpy(name, static_cast<Function *>(function)->name.c_str(), size - 1);
  return ACL_SUCCESS;
}

aclError aclrtGetFunctionAttribute(aclrtFuncHandle function, aclrtFuncAttribute attribute, int64_t *value) {
  const auto *each = static_cast<Function *>(function);
  const int16_t ratio[4] = {each->vectorsPerCube, 1, 0, 0};
  *value = attribute == ACL_FUNC_ATTR_KERNEL_TYPE ? each->type : 0;
  if (attribute == ACL_FUNC_ATTR_KERNEL_RATIO) std::memcpy(value, ratio, sizeof(ratio));
  return ACL_SUCCESS;
}

aclError aclrtFunctionGetBinary(aclrtFuncHandle function, aclrtBinHandle *binary) {
  *binary = static_cast<Function *>(function)->binary;
  return ACL_SUCCESS;
}

aclError aclrtGetFunctionAddr(aclrtFuncHandle function, void **cube, void **vector) {
  *cube = *vector = reinterpret_cast<void *>(kBinaryAddress + static_cast<Function *>(function)->offset);
  return ACL_SUCCESS;
}

aclError aclrtBinaryGetDevAddress(aclrtBinHandle, void **address, size_t *size) {
  *address = reinterpret_cast<void *>(kBinaryAddress);
  *size = 0;
  return ACL_SUCCESS;
}

aclError aclrtMemcpy(void *target, size_t, const void *source, size_t size, aclrtMemcpyKind) {
  std::memcpy(target, source, size);
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t *value) {
  *value = attribute == ACL_DEV_ATTR_CUBE_CORE_NUM ? cubeCores : vectorCores;
  return ACL_SUCCESS;
}

int rtBinaryGetMetaNum(void *binary, int, size_t *count) {
  *count = binary == kBinary ? 1 : 0;
  return 0;
}

int rtBinaryGetMetaInfo(void *, int, size_t, void **data, size_t *sizes) {
  SknlMapInfo entry{};
  entry.globalFunc = reinterpret_cast<void *>(kKnownOffset);
  for (void *&function : entry.sknlFunc) function = reinterpret_cast<void *>(kKnownOffset);
  std::memcpy(static_cast<char *>(data[0]) + sizes[0] - sizeof(entry), &entry, sizeof(entry));
  return 0;
}

void sk_scope_kernel_begin_do_dav_2201(void *stream, ScopeKernelArgs arguments) {
  LaunchMarker(stream, arguments, "sk_scope_kernel_begin_dav_2201");
}

void sk_scope_kernel_end_do_dav_2201(void *stream, ScopeKernelArgs arguments) {
  LaunchMarker(stream, arguments, "sk_scope_kernel_end_dav_2201");
}

void sk_placeholder_kernel_do_dav_2201(void *stream, ScopeKernelArgs arguments) {
  LaunchMarker(stream, arguments, "sk_placeholder_kernel_dav_2201");
}

}  // extern "C"

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout.flush();
    const pid_t child = fork();
    if (child == 0) {
      std::cout << Answer(Json::parse(line)).dump() << std::endl;
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status)) std::cout << R"({"failed": "crash"})" << std::endl;
  }
  return 0;
}
