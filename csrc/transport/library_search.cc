#include "transport/library_search.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace perseus {
namespace {

namespace fs = std::filesystem;

std::string last_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

std::string first_file(const LibrarySpec& spec) {
  for (const auto& folder : spec.folders) {
    std::error_code error;
    auto path = fs::path(folder) / spec.file;
    if (fs::exists(path, error)) return path.string();
  }
  return "";
}

}  // namespace

OpenedLibrary open_library(const LibrarySpec& spec, const std::string& given,
                           const std::function<void(const std::string& path)>& prepare) {
  // The library of the setting counts, although a framework may have loaded its own.
  if (given.empty()) {
    if (void* loaded = dlopen(spec.file.c_str(), RTLD_NOW | RTLD_NOLOAD)) return {loaded, spec.file};
  }
  const auto found = given.empty() ? first_file(spec) : given;
  const auto path = found.empty() ? spec.file : found;
  if (prepare) prepare(path);
  if (void* opened = dlopen(path.c_str(), RTLD_NOW)) return {opened, path};
  const auto reason = last_error();
  if (!given.empty()) {
    throw Error(ErrorKind::unavailable, "cannot open " + given + ", which " + spec.setting + " names: " + reason);
  }
  throw Error(ErrorKind::unavailable, (found.empty() ? spec.title + " is not installed: no " + spec.file + " was found"
                                                     : "cannot open " + found + ": " + reason) +
                                          ". " + spec.remedy + ", or set " + spec.setting + " to its " + spec.file);
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
  // Versions before 2.9 have a major number in thousands.
  const int major = version < 10'000 ? version / 1000 : version / 10'000;
  const int rest = version < 10'000 ? version % 1000 : version % 10'000;
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}

}  // namespace perseus
