#include "custom_calls.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace perseus::tensorflow {

namespace {

constexpr const char* kLibrary = "libtensorflow_cc.so.2";
constexpr const char* kGlobal = "_ZN3xla24CustomCallTargetRegistry6GlobalEv";
constexpr const char* kRegister =
    "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_";
constexpr const char* kMessage = "_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_";

// An optional string_view. Its two words may have either order.
struct Message {
  std::array<std::uintptr_t, 2> words;
  bool is_there;
};

// Returns whether TensorFlow reads from a CallStatus what has been written into it.
bool check_layout(void* library) {
  const auto message_of = reinterpret_cast<Message (*)(const CallStatus*)>(dlsym(library, kMessage));
  if (message_of == nullptr) return false;
  CallStatus written{}, empty{};
  written.set("a text that is longer than what a string holds in itself");
  const auto read = message_of(&written), nothing = message_of(&empty);
  const auto address = reinterpret_cast<std::uintptr_t>(written.text.data);
  const std::uintptr_t size = written.text.size;
  std::free(written.text.data);
  const bool same =
      (read.words[0] == address && read.words[1] == size) || (read.words[1] == address && read.words[0] == size);
  return read.is_there && same && !nothing.is_there;
}

// A string that TensorFlow only reads.
LibstdcxxString view_of(std::string& text) { return {text.data(), text.size(), {text.size(), 0}}; }

}  // namespace

void CallStatus::set(const std::string& error) {
  // libstdc++ frees the text by operator delete, which calls free().
  auto* const copied = static_cast<char*>(std::malloc(error.size() + 1));
  if (copied == nullptr) throw std::bad_alloc();
  std::memcpy(copied, error.c_str(), error.size() + 1);
  text = {copied, error.size(), {error.size(), 0}};
  has_text = true;
}

std::string register_custom_call(const std::string& name, CustomCall function) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return std::string(kLibrary) + " is not loaded";
  const auto global = reinterpret_cast<void* (*)()>(dlsym(library, kGlobal));
  const auto add = reinterpret_cast<void (*)(void*, const LibstdcxxString&, void*, const LibstdcxxString&)>(
      dlsym(library, kRegister));
  if (global == nullptr || add == nullptr) return std::string(kLibrary) + " does not export XLA's custom calls";
  if (!check_layout(library)) return "XLA's CustomCallStatus has another layout than known";
  std::string copied_name = name, platform = "Host";
  add(global(), view_of(copied_name), reinterpret_cast<void*>(function), view_of(platform));
  return "";
}

}  // namespace perseus::tensorflow
