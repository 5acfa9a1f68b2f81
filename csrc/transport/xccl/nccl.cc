#include "transport/xccl/nccl.h"

#include "base/error.h"

namespace perseus::xccl {

std::shared_ptr<const Library> open_nccl(const Places& places) {
  Sought sought{.title = "NCCL",
                .file = "libnccl.so.2",
                .setting = "PERSEUS_NCCL_LIBRARY",
                .remedy = "Install it with `pip install nvidia-nccl-cu12` (-cu13 where CUDA is 13)",
                .folders = below_site_packages(places.python_prefix, "nvidia/nccl/lib")};
  if (!places.python_prefix.empty()) sought.folders.push_back(places.python_prefix + "/lib");
  const auto opened = open_library(sought, places.given);

  auto library = std::make_shared<Library>();
  library->name = sought.title;
  library->prefix = "nccl";
  library->advice =
      "NCCL_DEBUG=WARN says more. Where the driver is older than NCCL's CUDA, take nvidia-nccl-cu12 in place of -cu13, "
      "or "
      "a newer driver; PERSEUS_NCCL_LIBRARY names another NCCL";
  library->call = find_functions(opened.handle, library->prefix, opened.path);
  int version = 0;
  library->check(library->call.get_version(&version), "GetVersion");
  library->version = version_text(version);
  // Send, receive and the operators with a factor came with 2.7 and 2.11.
  if (library->call.send == nullptr || library->call.red_op_create_pre_mul_sum == nullptr) {
    throw Error(ErrorKind::unavailable,
                opened.path + " is " + library->title() + "; 2.11 or later is needed. " + sought.remedy);
  }
  return library;
}

}  // namespace perseus::xccl
