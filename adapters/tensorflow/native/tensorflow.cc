#include "tensorflow.h"

#include <dlfcn.h>

namespace perseus::tensorflow {

namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

TensorFlow look_up() {
  TensorFlow found;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    found.problem = std::string(kLibrary) + " is not loaded in this process";
    return found;
  }
  std::string missing;
#define PERSEUS_LOOK_UP(result, name, parameters)                             \
  found.name = reinterpret_cast<result(*) parameters>(dlsym(library, #name)); \
  if (found.name == nullptr) missing += " " #name;
  PERSEUS_TENSORFLOW_FUNCTIONS(PERSEUS_LOOK_UP)
  if (!missing.empty()) found.problem = std::string(kLibrary) + " lacks" + missing;
  PERSEUS_TENSORFLOW_NEWER_FUNCTIONS(PERSEUS_LOOK_UP)
#undef PERSEUS_LOOK_UP
  return found;
}

}  // namespace

const TensorFlow& tf() {
  static const TensorFlow the_one = look_up();
  return the_one;
}

}  // namespace perseus::tensorflow
