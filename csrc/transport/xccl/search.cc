#include "transport/xccl/search.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace perseus::xccl {
namespace {

namespace fs = std::filesystem;

std::string last_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

std::string first_file(const Sought& sought) {
  for (const auto& folder : sought.folders) {
    std::error_code error;
    auto path = fs::path(folder) / sought.file;
    if (fs::exists(path, error)) return path.string();
  }
  return "";
}

}  // namespace

Opened open_library(const Sought& sought, const std::string& given,
                    const std::function<void(const std::string& path)>& prepare) {
  if (void* loaded = dlopen(sought.file.c_str(), RTLD_NOW | RTLD_NOLOAD)) return {loaded, sought.file};
  const auto found = given.empty() ? first_file(sought) : given;
  const auto path = found.empty() ? sought.file : found;
  if (prepare) prepare(path);
  if (void* opened = dlopen(path.c_str(), RTLD_NOW)) return {opened, path};
  const auto reason = last_error();
  if (!given.empty()) {
    throw Error(ErrorKind::unavailable, "cannot open " + given + ", which " + sought.setting + " names: " + reason);
  }
  throw Error(ErrorKind::unavailable,
              (found.empty() ? sought.title + " is not installed: no " + sought.file + " was found"
                             : "cannot open " + found + ": " + reason) +
                  ". " + sought.remedy + ", or set " + sought.setting + " to its " + sought.file);
}

std::vector<std::string> below_site_packages(const std::string& python_prefix, const std::string& rest) {
  std::vector<std::string> folders;
  if (python_prefix.empty()) return folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(python_prefix) / "lib", error)) {
    if (!entry.path().filename().string().starts_with("python")) continue;
    folders.push_back((entry.path() / "site-packages" / rest).string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string version_text(int version) {
  // Before 2.9 the major number counted thousands.
  const int major = version < 10'000 ? version / 1000 : version / 10'000;
  const int rest = version < 10'000 ? version % 1000 : version % 10'000;
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}

}  // namespace perseus::xccl
