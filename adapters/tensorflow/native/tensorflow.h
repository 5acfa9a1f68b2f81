// The part of TensorFlow's C API that is used here. The functions are looked up in the loaded TensorFlow, and none of
// its headers is included, so that one library works with every release. Sources:
// tensorflow/c/{kernels,ops,tf_tensor,tf_status}.h of 2.15 to 2.21.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace perseus::tensorflow {

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_AsyncOpKernelDoneCallback;

struct TF_StringView {
  const char* data;
  std::size_t len;
};

// Numbers of TF_DataType.
enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_UINT16 = 17,
  TF_HALF = 19,
};

// Numbers of TF_Code.
enum TF_Code : int { TF_OK = 0, TF_UNKNOWN = 2, TF_INVALID_ARGUMENT = 3, TF_FAILED_PRECONDITION = 9 };

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Create = void* (*)(TF_OpKernelConstruction*);
using Compute = void (*)(void*, TF_OpKernelContext*);
using ComputeAsync = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using Delete = void (*)(void*);

// X(result, name, parameters)
#define PERSEUS_TENSORFLOW_FUNCTIONS(X)                                                                             \
  X(TF_Status*, TF_NewStatus, ())                                                                                   \
  X(void, TF_DeleteStatus, (TF_Status*))                                                                            \
  X(void, TF_SetStatus, (TF_Status*, TF_Code, const char*))                                                         \
  X(TF_Code, TF_GetCode, (const TF_Status*))                                                                        \
  X(const char*, TF_Message, (const TF_Status*))                                                                    \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char*))                                              \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                           \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                    \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                   \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                  \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                     \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, ShapeFunction))                \
  X(std::int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                   \
  X(TF_ShapeHandle*, TF_NewShapeHandle, ())                                                                         \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                                                  \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                   \
  X(TF_ShapeHandle*, TF_ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext*, std::size_t))              \
  X(void, TF_ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))          \
  X(void, TF_ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))         \
  X(int, TF_ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                           \
  X(void, TF_ShapeInferenceContextSubshape,                                                                         \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t, std::int64_t, TF_ShapeHandle*, TF_Status*))          \
  X(void, TF_ShapeInferenceContextConcatenateShapes,                                                                \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))                     \
  X(TF_KernelBuilder*, TF_NewKernelBuilder, (const char*, const char*, Create, Compute, Delete))                    \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                                            \
  X(void, TF_RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                   \
  X(TF_StringView, TF_OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                                     \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                                      \
    (TF_OpKernelConstruction*, const char*, std::int32_t*, std::int32_t*, TF_Status*))                              \
  X(void, TF_OpKernelConstruction_GetAttrString,                                                                    \
    (TF_OpKernelConstruction*, const char*, char*, std::size_t, TF_Status*))                                        \
  X(void, TF_OpKernelConstruction_GetAttrInt32, (TF_OpKernelConstruction*, const char*, std::int32_t*, TF_Status*)) \
  X(void, TF_OpKernelConstruction_GetAttrBool, (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*)) \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                  \
  X(int, TF_NumInputs, (TF_OpKernelContext*))                                                                       \
  X(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                         \
  X(void, TF_SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                   \
  X(TF_Tensor*, TF_AllocateOutput,                                                                                  \
    (TF_OpKernelContext*, int, TF_DataType, const std::int64_t*, int, std::size_t, TF_Status*))                     \
  X(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                                                    \
    (TF_OpKernelContext*, const int*, int, int, const std::int64_t*, int, int*, TF_Status*))                        \
  X(std::uint64_t, TF_GetFrameId, (TF_OpKernelContext*))                                                            \
  X(std::int64_t, TF_GetIterId, (TF_OpKernelContext*))                                                              \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                            \
  X(TF_Tensor*, TF_NewTensor,                                                                                       \
    (TF_DataType, const std::int64_t*, int, void*, std::size_t, void (*)(void*, std::size_t, void*), void*))        \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                                            \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                                       \
  X(TF_DataType, TF_TensorType, (const TF_Tensor*))                                                                 \
  X(int, TF_NumDims, (const TF_Tensor*))                                                                            \
  X(std::int64_t, TF_Dim, (const TF_Tensor*, int))                                                                  \
  X(std::int64_t, TF_TensorElementCount, (const TF_Tensor*))

// Available from 2.13 on, or from an earlier release on; null before.
#define PERSEUS_TENSORFLOW_NEWER_FUNCTIONS(X)                                                              \
  X(TF_KernelBuilder*, TF_NewAsyncKernelBuilder, (const char*, const char*, Create, ComputeAsync, Delete)) \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                                \
  X(std::int64_t, TF_StepId, (TF_OpKernelContext*))

struct TensorFlow {
#define PERSEUS_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  PERSEUS_TENSORFLOW_FUNCTIONS(PERSEUS_MEMBER)
  PERSEUS_TENSORFLOW_NEWER_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
  std::string problem;  // why TensorFlow cannot be used; empty if it can
};

// Returns the functions, which the first call looks up.
const TensorFlow& tf();

// Owns a TF_Status.
class Status {
 public:
  Status() : status_(tf().TF_NewStatus()) {}
  ~Status() { tf().TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  operator TF_Status*() const { return status_; }
  bool ok() const { return tf().TF_GetCode(status_) == TF_OK; }
  void set(TF_Code code, const std::string& text) { tf().TF_SetStatus(status_, code, text.c_str()); }

 private:
  TF_Status* status_;
};

}  // namespace perseus::tensorflow
