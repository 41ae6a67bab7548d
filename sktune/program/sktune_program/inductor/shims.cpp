#include <ATen/ops/_softmax.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

namespace {

const at::Tensor& tensor(AtenTensorHandle handle) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle);
}

std::optional<at::Tensor> optional_tensor(AtenTensorHandle* handle) {
  return handle ? std::optional<at::Tensor>(tensor(*handle)) : std::nullopt;
}

std::optional<at::ScalarType> scalar_type(const int32_t* dtype) {
  return dtype ? std::optional<at::ScalarType>(static_cast<at::ScalarType>(*dtype)) : std::nullopt;
}

at::OptionalIntArrayRef dimensions(const int64_t** dim, int64_t length) {
  return dim ? at::OptionalIntArrayRef(at::IntArrayRef(*dim, length)) : at::OptionalIntArrayRef();
}

AtenTensorHandle handle(at::Tensor&& result) {
  return torch::aot_inductor::new_tensor_handle(std::move(result));
}

}  // namespace

extern "C" {

AOTITorchError aoti_torch_cpu_sum(AtenTensorHandle self, int32_t* dtype, AtenTensorHandle* ret0) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ *ret0 = handle(at::sum(tensor(self), scalar_type(dtype))); });
}

AOTITorchError aoti_torch_cpu_sum_dim_IntList(
    AtenTensorHandle self, const int64_t** dim, int64_t dim_len_, int32_t keepdim, int32_t* dtype,
    AtenTensorHandle* ret0) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { *ret0 = handle(at::sum(tensor(self), dimensions(dim, dim_len_), keepdim != 0, scalar_type(dtype))); });
}

AOTITorchError aoti_torch_cpu_mean(AtenTensorHandle self, int32_t* dtype, AtenTensorHandle* ret0) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ *ret0 = handle(at::mean(tensor(self), scalar_type(dtype))); });
}

AOTITorchError aoti_torch_cpu_mean_dim(
    AtenTensorHandle self, const int64_t** dim, int64_t dim_len_, int32_t keepdim, int32_t* dtype,
    AtenTensorHandle* ret0) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE(
      { *ret0 = handle(at::mean(tensor(self), dimensions(dim, dim_len_), keepdim != 0, scalar_type(dtype))); });
}

AOTITorchError aoti_torch_cpu__softmax(
    AtenTensorHandle self, int64_t dim, int32_t half_to_float, AtenTensorHandle* ret0) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({ *ret0 = handle(at::_softmax(tensor(self), dim, half_to_float != 0)); });
}

AOTITorchError aoti_torch_cpu_native_layer_norm(
    AtenTensorHandle input, const int64_t* normalized_shape, int64_t normalized_shape_len_, AtenTensorHandle* weight,
    AtenTensorHandle* bias, double eps, AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2) {
  AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({
    auto results = at::native_layer_norm(
        tensor(input), at::IntArrayRef(normalized_shape, normalized_shape_len_), optional_tensor(weight),
        optional_tensor(bias), eps);
    *ret0 = handle(std::move(std::get<0>(results)));
    *ret1 = handle(std::move(std::get<1>(results)));
    *ret2 = handle(std::move(std::get<2>(results)));
  });
}

}  // extern "C"
