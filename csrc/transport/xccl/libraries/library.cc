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
  finder.require(table.get_version, "GetVersion");
  finder.require(table.get_unique_id, "GetUniqueId");
  finder.require(table.comm_init_rank, "CommInitRank");
  finder.require(table.comm_destroy, "CommDestroy");
  finder.require(table.get_error_string, "GetErrorString");
  finder.require(table.get_last_error, "GetLastError");
  finder.require(table.all_reduce, "AllReduce");
  finder.require(table.broadcast, "Broadcast");
  finder.require(table.reduce, "Reduce");
  finder.require(table.all_gather, "AllGather");
  finder.require(table.reduce_scatter, "ReduceScatter");
  finder.find(table.comm_init_rank_config, "CommInitRankConfig");
  finder.find(table.comm_abort, "CommAbort");
  finder.find(table.comm_revoke, "CommRevoke");
  finder.find(table.comm_get_async_error, "CommGetAsyncError");
  finder.find(table.send, "Send");
  finder.find(table.recv, "Recv");
  finder.find(table.group_start, "GroupStart");
  finder.find(table.group_end, "GroupEnd");
  finder.find(table.all_to_all, "AllToAll");
  finder.find(table.red_op_create_pre_mul_sum, "RedOpCreatePreMulSum");
  finder.find(table.red_op_destroy, "RedOpDestroy");
  finder.find(table.comm_register, "CommRegister");
  finder.find(table.comm_deregister, "CommDeregister");
  return table;
}

}  // namespace perseus::xccl
