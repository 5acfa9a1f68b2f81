// The core's table of functions, and how its words (dtypes, errors) are said to TensorFlow.
#pragma once

#include <cstdint>
#include <string>

#include "perseus.h"
#include "tensorflow.h"

namespace perseus::tensorflow {

// Null until Python has handed it in.
const PerseusApi* core();
void use_core(const PerseusApi* api);

// The core's number of a type, -1 for those it does not carry; and back.
std::int32_t core_dtype(TF_DataType dtype);
bool is_core_dtype(std::int32_t number);
TF_DataType tensorflow_dtype(std::int32_t dtype);
std::size_t bytes_per_element(TF_DataType dtype);

// Python finds the kind again in the text, see adapters/tensorflow/errors.py.
std::string error_text(std::int32_t kind, const std::string& message);
TF_Code error_code(std::int32_t kind);

}  // namespace perseus::tensorflow
