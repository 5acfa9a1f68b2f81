// The registry of native functions that XLA can call on the CPU.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace perseus::tensorflow {

// XLA's XlaCustomCallStatus_: the error of a custom call. Without a message, the call has succeeded.
struct CallStatus {
  std::optional<std::string> message;
};

// `results` points to the tuple of results, `operands` to the operands, `text` is the call's backend_config.
using CustomCall = void (*)(void* results, const void** operands, const char* text, std::size_t length,
                            CallStatus* status);

// Registers a function that compiled graphs call by `name`. Returns why that is impossible; "" if it is done.
//
// Relies on: libtensorflow_cc.so.2 exporting xla::CustomCallTargetRegistry::Global() and Register(name, function,
// platform), and xla::CustomCallStatusGetMessage(status); and on XlaCustomCallStatus_ being an optional string.
// Tried with: all.
// Notices: a symbol is missing, or TensorFlow reads another text from a status than was written into it.
// Lost then: functions that contain collectives run uncompiled. The log says so.
std::string register_custom_call(const std::string& name, CustomCall function);

}  // namespace perseus::tensorflow
