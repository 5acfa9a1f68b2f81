// The registry of native functions that XLA can call on the CPU.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace perseus::tensorflow {

// A std::string in the layout of libstdc++, with which TensorFlow is compiled. This library may be compiled with
// another standard library.
struct LibstdcxxString {
  char* data = nullptr;
  std::size_t size = 0;
  std::array<std::size_t, 2> capacity{};  // the first word; a short text would be here instead
};

// XLA's XlaCustomCallStatus_, an optional string: the error of a custom call. Without a text, the call has succeeded.
struct CallStatus {
  LibstdcxxString text;
  bool has_text = false;

  // For target() of xla.cc: sets the text of a status that has none. XLA frees the text.
  void set(const std::string& error);
};

// `results` points to the tuple of results, `operands` to the operands, `text` is the call's backend_config.
using CustomCall = void (*)(void* results, const void** operands, const char* text, std::size_t length,
                            CallStatus* status);

// Registers a function that compiled graphs call by `name`. Returns why that is impossible; "" if it is done.
//
// Relies on: libtensorflow_cc.so.2 exporting xla::CustomCallTargetRegistry::Global() and Register(name, function,
// platform), and xla::CustomCallStatusGetMessage(status); and on XlaCustomCallStatus_ being an optional string of
// libstdc++. Tried with: all. Notices: a symbol is missing, or TensorFlow reads another text from a status than was
// written into it. Lost then: functions that contain collectives run uncompiled. The log says so.
std::string register_custom_call(const std::string& name, CustomCall function);

}  // namespace perseus::tensorflow
