#include <limits>
#include <string>
#include <vector>

#include "core.h"
#include "registrations.h"

namespace perseus::tensorflow {

namespace {

class Shape {
 public:
  explicit Shape(TF_ShapeHandle* handle = tf().TF_NewShapeHandle()) : handle_(handle) {}
  ~Shape() { tf().TF_DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  operator TF_ShapeHandle*() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto count = static_cast<int>(tf().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && tf().TF_GetCode(status) == TF_OK; ++i) {
    const Shape shape;
    tf().TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf().TF_GetCode(status) == TF_OK) tf().TF_ShapeInferenceContextSetOutput(context, i, shape, status);
  }
}

// Sets an output shape that differs from the input's in its first dimension, which is unknown. If the rank is unknown,
// so is the whole shape.
void other_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  constexpr auto kUnknown = std::numeric_limits<std::size_t>::max();
  const Shape input;
  tf().TF_ShapeInferenceContextGetInput(context, index, input, status);
  if (tf().TF_GetCode(status) != TF_OK || tf().TF_ShapeInferenceContextRankKnown(context, input) == 0) return;
  const Shape rest, output, rows(tf().TF_ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf().TF_ShapeInferenceContextSubshape(context, input, 1, std::numeric_limits<std::int64_t>::max(), rest, status);
  if (tf().TF_GetCode(status) != TF_OK) return;
  tf().TF_ShapeInferenceContextConcatenateShapes(context, rows, rest, output, status);
  if (tf().TF_GetCode(status) == TF_OK) tf().TF_ShapeInferenceContextSetOutput(context, index, output, status);
}

void other_rows_of_all(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto count = static_cast<int>(tf().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < count && tf().TF_GetCode(status) == TF_OK; ++i) other_rows(context, i, status);
}

void alltoall_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  constexpr auto kUnknown = std::numeric_limits<std::size_t>::max();
  other_rows(context, 0, status);
  const Shape splits(tf().TF_ShapeInferenceContextVectorFromSize(context, kUnknown));
  if (tf().TF_GetCode(status) == TF_OK) tf().TF_ShapeInferenceContextSetOutput(context, 1, splits, status);
}

void a_number(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(tf().TF_ShapeInferenceContextScalar(context));
  tf().TF_ShapeInferenceContextSetOutput(context, 0, scalar, status);
}

void no_outputs(TF_ShapeInferenceContext* /*context*/, TF_Status* status) { tf().TF_SetStatus(status, TF_OK, ""); }

// Returns the core's element types as the type of an attribute: "{uint8, int8, …}".
std::string attribute_types() {
#define PERSEUS_ROW(NAME, name, text, ...) ", " text
  const std::string types = PERSEUS_DTYPES(PERSEUS_ROW);
#undef PERSEUS_ROW
  return "{" + types.substr(2) + "}";
}

}  // namespace

const std::vector<Operation>& operations() {
  static const std::string kTypes = "T: list(" + attribute_types() + ") >= 1";
  static const std::string kType = "T: " + attribute_types();
  const char* const types = kTypes.c_str();
  const char* const name = "tensor_name: string = ''";
  const char* const grouped = "grouped: bool = false";
  const char* const set = "process_set_id: int = 0";
  const char* const wait = "wait: bool = false";
  const char* const op = "reduce_op: int = 0";
  const char* const average = "average: bool = false";
  const char* const prescale = "prescale_factor: string = '1.0'";
  const char* const postscale = "postscale_factor: string = '1.0'";
  static const std::vector<Operation> kOperations = {
      {"PerseusAllreduce",
       PERSEUS_ALLREDUCE,
       {"tensors: T"},
       {"reduced: T"},
       {types, name, grouped, set, wait, op, average, prescale, postscale, "adasum: bool = false",
        "wire_dtype: int = -1", "member_names: string = ''"},
       same_shapes},
      {"PerseusBroadcast",
       PERSEUS_BROADCAST,
       {"tensors: T"},
       {"received: T"},
       {types, name, grouped, set, wait, "root: int = 0"},
       same_shapes},
      {"PerseusAllgather",
       PERSEUS_ALLGATHER,
       {"tensors: T"},
       {"gathered: T"},
       {types, name, grouped, set, wait},
       other_rows_of_all},
      {"PerseusReduceScatter",
       PERSEUS_REDUCE_SCATTER,
       {"tensors: T"},
       {"shares: T"},
       {types, name, grouped, set, wait, op, average, prescale, postscale},
       other_rows_of_all},
      {"PerseusAlltoall",
       PERSEUS_ALLTOALL,
       {"tensor: T", "splits: int32"},
       {"received: T", "received_splits: int32"},
       {kType.c_str(), name, grouped, set, wait},
       alltoall_shapes},
      {"PerseusBarrier", PERSEUS_BARRIER, {}, {}, {name, grouped, set, wait}, no_outputs},
      {"PerseusJoin", PERSEUS_JOIN, {}, {"last: int32"}, {name, grouped, set, wait}, a_number},
      {"PerseusProbe", 0, {}, {"trusted: bool"}, {}, a_number},
      {"PerseusNumber", 0, {}, {"number: int32"}, {"what: string", set}, a_number},
  };
  return kOperations;
}

std::string register_operations() {
  std::string problems;
  for (const auto& operation : operations()) {
    auto* const builder = tf().TF_NewOpDefinitionBuilder(operation.name);
    for (const auto* attribute : operation.attributes) tf().TF_OpDefinitionBuilderAddAttr(builder, attribute);
    for (const auto* input : operation.inputs) tf().TF_OpDefinitionBuilderAddInput(builder, input);
    for (const auto* output : operation.outputs) tf().TF_OpDefinitionBuilderAddOutput(builder, output);
    // Stateful nodes are neither folded into a constant nor merged with an identical node.
    tf().TF_OpDefinitionBuilderSetIsStateful(builder, true);
    tf().TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, operation.shapes);
    const Status status;
    tf().TF_RegisterOpDefinition(builder, status);
    if (!status.ok()) problems += std::string(operation.name) + ": " + tf().TF_Message(status) + "; ";
  }
  return problems;
}

}  // namespace perseus::tensorflow
