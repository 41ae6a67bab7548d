// C functions for reductions that Inductor's C++ wrappers may call in the place of the boxed dispatcher.
// Names and arguments are those that torchgen gives to a shim of the same operator (torchgen/aoti/fallback_ops.py).
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

extern "C" {
AOTITorchError aoti_torch_cpu_sum(AtenTensorHandle self, int32_t* dtype, AtenTensorHandle* ret0);
AOTITorchError aoti_torch_cpu_sum_dim_IntList(
    AtenTensorHandle self, const int64_t** dim, int64_t dim_len_, int32_t keepdim, int32_t* dtype,
    AtenTensorHandle* ret0);
AOTITorchError aoti_torch_cpu_mean(AtenTensorHandle self, int32_t* dtype, AtenTensorHandle* ret0);
AOTITorchError aoti_torch_cpu_mean_dim(
    AtenTensorHandle self, const int64_t** dim, int64_t dim_len_, int32_t keepdim, int32_t* dtype,
    AtenTensorHandle* ret0);
AOTITorchError aoti_torch_cpu__softmax(
    AtenTensorHandle self, int64_t dim, int32_t half_to_float, AtenTensorHandle* ret0);
AOTITorchError aoti_torch_cpu_native_layer_norm(
    AtenTensorHandle input, const int64_t* normalized_shape, int64_t normalized_shape_len_, AtenTensorHandle* weight,
    AtenTensorHandle* bias, double eps, AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2);
}
