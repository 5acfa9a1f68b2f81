#include "transport/mpi/pmi.h"

#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace perseus::mpi {
namespace {

// The limits of Hydra, because clients read a line into a fixed buffer.
constexpr std::size_t kNameBytes = 256, kKeyBytes = 64, kValueBytes = 1024;

// Returns the word after `name` in a line such as "cmd=get kvsname=… key=…", or the rest of the line.
std::string_view word(std::string_view line, std::string_view name, bool rest = false) {
  for (std::size_t at = 0; (at = line.find(name, at)) != std::string_view::npos; at += name.size()) {
    const auto behind = at + name.size();
    if (behind >= line.size() || line[behind] != '=' || (at > 0 && line[at - 1] != ' ')) continue;
    const auto found = line.substr(behind + 1);
    return rest ? found : found.substr(0, found.find(' '));
  }
  return {};
}

void append(std::string& bytes, std::string_view text) {
  const auto length = static_cast<std::uint64_t>(text.size());
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
  bytes.append(text);
}

std::string take(std::string_view& bytes) {
  std::uint64_t length = 0;
  if (bytes.size() >= sizeof length) {
    std::memcpy(&length, bytes.data(), sizeof length);
    bytes.remove_prefix(sizeof length);
    if (length <= bytes.size()) {
      std::string text(bytes.substr(0, length));
      bytes.remove_prefix(length);
      return text;
    }
  }
  throw Error(ErrorKind::transport,
              "start of MPI: another rank sent malformed addresses of its MPI; check that all ranks run the same "
              "version of perseus_like");
}

struct Block {
  int first, hosts, ranks;
};

}  // namespace

std::string process_mapping(const std::vector<int>& hosts) {
  std::vector<Block> blocks;
  for (std::size_t at = 0; at < hosts.size();) {
    Block next{hosts[at], 1, 0};
    for (; at < hosts.size() && hosts[at] == next.first; ++at) ++next.ranks;
    auto* last = blocks.empty() ? nullptr : &blocks.back();
    if (last != nullptr && last->ranks == next.ranks && last->first + last->hosts == next.first) {
      ++last->hosts;
    } else {
      blocks.push_back(next);
    }
  }
  std::string text = "(vector";
  for (const auto& block : blocks) {
    text += ",(" + std::to_string(block.first) + "," + std::to_string(block.hosts) + "," + std::to_string(block.ranks) +
            ")";
  }
  text += ')';
  return text.size() < kValueBytes ? text : std::string();
}

PmiAnswers::PmiAnswers(const std::vector<int>& hosts, std::string name, Exchange exchange)
    : size_(static_cast<int>(hosts.size())), name_(std::move(name)), exchange_(std::move(exchange)) {
  if (auto mapping = process_mapping(hosts); !mapping.empty()) values_["PMI_process_mapping"] = std::move(mapping);
}

std::optional<std::string> PmiAnswers::answer(std::string_view line) {
  if (line.starts_with("mcmd=")) in_lines_ = true;
  if (in_lines_) {
    if (line != "endcmd") return std::nullopt;
    in_lines_ = false;
    return "cmd=spawn_result rc=-1 errmsg=no_launcher";
  }
  const auto command = word(line, "cmd");
  if (command == "init") return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0";
  if (command == "get_maxes") {
    return "cmd=maxes kvsname_max=" + std::to_string(kNameBytes) + " keylen_max=" + std::to_string(kKeyBytes) +
           " vallen_max=" + std::to_string(kValueBytes);
  }
  if (command == "get_appnum") return "cmd=appnum appnum=0";
  if (command == "get_my_kvsname") return "cmd=my_kvsname kvsname=" + name_;
  if (command == "get_universe_size") return "cmd=universe_size size=" + std::to_string(size_);
  if (command == "put") return put(line);
  if (command == "get") return get(line);
  if (command == "barrier_in") return barrier(line);
  if (command == "finalize") return "cmd=finalize_ack rc=0";
  if (command == "abort") return std::nullopt;
  return "cmd=" + std::string(command) + "_result rc=-1 msg=not_supported";
}

std::string PmiAnswers::put(std::string_view line) {
  const std::string key(word(line, "key")), value(word(line, "value", true));
  values_[key] = value;
  news_.emplace_back(key, value);
  return "cmd=put_result rc=0 msg=success";
}

std::string PmiAnswers::get(std::string_view line) const {
  const auto found = values_.find(word(line, "key"));
  if (found == values_.end()) return "cmd=get_result rc=-1 msg=key_not_found value=unknown";
  return "cmd=get_result rc=0 msg=success value=" + found->second;
}

std::string PmiAnswers::barrier(std::string_view line) {
  const auto group = word(line, "group");
  if (!group.empty() && group != "WORLD") return "cmd=barrier_out rc=-1 msg=not_supported";
  std::string mine;
  for (const auto& [key, value] : news_) {
    append(mine, key);
    append(mine, value);
  }
  news_.clear();
  const auto all = exchange_(mine);
  if (all.empty() && !mine.empty()) return "cmd=barrier_out rc=-1 msg=not_supported";
  for (const auto& each : all) {
    for (std::string_view bytes = each; !bytes.empty();) {
      auto key = take(bytes);
      values_[std::move(key)] = take(bytes);
    }
  }
  return "cmd=barrier_out rc=0";
}

}  // namespace perseus::mpi
