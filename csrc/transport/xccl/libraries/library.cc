#include "transport/xccl/libraries/library.h"

#include <dlfcn.h>

#include <string_view>

#include "base/error.h"

namespace perseus::xccl {
namespace {

class Finder {
 public:
  Finder(void* opened, std::string prefix, std::string path)
      : opened_(opened), prefix_(std::move(prefix)), path_(std::move(path)) {}

  template <class Function>
  void require(Function*& function, const char* name) const {
    find(function, name);
    if (function != nullptr) return;
    throw Error(ErrorKind::unavailable,
                path_ + " has no " + prefix_ + name +
                    ": it is too old or another library; install a newer one or correct its path");
  }

  template <class Function>
  void find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(dlsym(opened_, (prefix_ + name).c_str()));
  }

 private:
  void* opened_;
  std::string prefix_, path_;
};

}  // namespace

void Library::check(int code, const char* function, Comm comm) const {
  if (code == kSuccess) return;
  const auto text_of = [](const char* text) { return std::string(text == nullptr ? "" : text); };
  auto reason = text_of(call.get_error_string(code));
  const auto detail = text_of(call.get_last_error(comm));
  if (!detail.empty()) reason += (reason.empty() ? "" : ": ") + detail;
  throw Error(ErrorKind::transport, prefix + function + " of " + title() + " failed with code " + std::to_string(code) +
                                        (reason.empty() ? "" : ": " + reason));
}

int version_of(void* opened, const std::string& prefix, const std::string& path) {
  int (*get_version)(int*) = nullptr;
  Finder(opened, prefix, path).require(get_version, "GetVersion");
  int version = 0;
  return get_version(&version) == kSuccess ? version : 0;
}

Functions find_functions(void* opened, const std::string& prefix, const std::string& path) {
  const Finder finder(opened, prefix, path);
  Functions table;
#define PERSEUS_REQUIRE(result, member, name, parameters) finder.require(table.member, name);
#define PERSEUS_FIND(result, member, name, parameters) finder.find(table.member, name);
  PERSEUS_XCCL_FUNCTIONS(PERSEUS_REQUIRE, PERSEUS_FIND)
#undef PERSEUS_REQUIRE
#undef PERSEUS_FIND
  return table;
}

}  // namespace perseus::xccl
