// The core's table of functions, and the conversion of its dtypes and errors to TensorFlow's.
#pragma once

#include <cstdint>
#include <string>

#include "perseus.h"
#include "tensorflow.h"

namespace perseus::tensorflow {

// Returns null until Python has passed the table.
const PerseusApi* core();
void use_core(const PerseusApi* api);

// Returns the core's number of a type, or -1 if the core does not support it.
std::int32_t core_dtype(TF_DataType dtype);
bool is_core_dtype(std::int32_t number);
TF_DataType tensorflow_dtype(std::int32_t dtype);
std::size_t bytes_per_element(TF_DataType dtype);

// Returns true if results have the shapes of the tensors, so that the adapter provides their memory, and not the core.
bool keeps_shapes(std::int32_t verb);

// Returns the text with the error kind in front, which adapters/tensorflow/errors.py reads.
std::string error_text(std::int32_t kind, const std::string& message);
TF_Code error_code(std::int32_t kind);

}  // namespace perseus::tensorflow
