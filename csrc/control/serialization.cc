#include "control/serialization.h"

#include <climits>
#include <cstring>

#include "base/error.h"

namespace perseus {

namespace {

[[noreturn]] void malformed() {
  throw Error(ErrorKind::transport,
              "negotiation: a control message from another rank is malformed; check that all ranks run the same "
              "version of perseus_like");
}

template <typename Enum>
Enum checked(std::uint64_t value, Enum last) {
  if (value > static_cast<std::uint64_t>(last)) malformed();
  return static_cast<Enum>(value);
}

}  // namespace

void Writer::number(std::uint64_t value) {
  while (value >= 0x80) {
    bytes_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  bytes_.push_back(static_cast<char>(value));
}

void Writer::signed_number(std::int64_t value) {
  number((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

void Writer::real(double value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }

void Writer::text(std::string_view value) {
  number(value.size());
  bytes_.append(value);
}

void Writer::numbers(std::span<const int> values) {
  number(values.size());
  for (const int value : values) signed_number(value);
}

void Writer::ranks(const RankSet& ranks) {
  number(ranks.runs().size());
  int previous = 0;
  for (const auto& run : ranks.runs()) {
    number(static_cast<std::uint64_t>(run.first - previous));
    number(static_cast<std::uint64_t>(run.end - run.first));
    previous = run.end;
  }
}

void Writer::runs(std::span<const std::uint32_t> ids) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) count += i == 0 || ids[i] != ids[i - 1] + 1;
  number(count);
  std::int64_t previous = 0;
  for (std::size_t i = 0; i < ids.size();) {
    std::size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    signed_number(static_cast<std::int64_t>(ids[i]) - previous);
    number(end - i);
    previous = ids[end - 1];
    i = end;
  }
}

void Writer::request(const Request& request) {
  number(static_cast<std::uint64_t>(request.verb));
  text(request.name);
  text(request.call);
  text(request.member_names);
  number(request.members.size());
  for (const auto& member : request.members) {
    number(static_cast<std::uint64_t>(member.dtype));
    number(member.shape.size());
    for (const auto extent : member.shape) signed_number(extent);
  }
  number(static_cast<std::uint64_t>(request.op));
  real(request.scale.pre);
  real(request.scale.post);
  signed_number(request.scale.divisor);
  signed_number(request.wire_dtype);
  signed_number(request.root);
  number(request.on_host ? 1 : 0);
  number(request.checked ? 1 : 0);
  number(request.ranks.size());
  for (const auto rank : request.ranks) signed_number(rank);
}

std::string_view Reader::take(std::size_t count) {
  if (count > rest_.size()) malformed();
  const auto taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::uint64_t Reader::number() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(1).front());
    value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if ((byte & 0x80U) == 0) return value;
  }
  malformed();
}

std::int64_t Reader::signed_number() {
  const auto value = number();
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

int Reader::small_number() {
  const auto value = signed_number();
  if (value < INT_MIN || value > INT_MAX) malformed();
  return static_cast<int>(value);
}

double Reader::real() {
  double value = 0;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

std::size_t Reader::length() {
  const auto count = number();
  if (count > rest_.size()) malformed();
  return count;
}

std::string Reader::text() { return std::string(take(length())); }

std::vector<int> Reader::numbers() {
  std::vector<int> values(length());
  for (auto& value : values) value = small_number();
  return values;
}

RankSet Reader::ranks() {
  constexpr std::uint64_t kMost = INT_MAX;
  RankSet ranks;
  std::uint64_t previous = 0;
  for (auto left = length(); left > 0; --left) {
    const auto gap = number(), count = number();
    if (gap > kMost || count == 0 || count > kMost || previous + gap + count > kMost) malformed();
    ranks.add_run({static_cast<int>(previous + gap), static_cast<int>(previous + gap + count)});
    previous += gap + count;
  }
  return ranks;
}

std::vector<std::uint32_t> Reader::runs() {
  constexpr std::int64_t kMostId = UINT32_MAX;
  std::vector<std::uint32_t> ids;
  std::int64_t previous = 0;
  for (auto left = length(); left > 0; --left) {
    const auto step = signed_number();
    const auto count = number();
    if (step < -kMostId || step > kMostId || count == 0 || count > ids_left_) malformed();
    ids_left_ -= count;
    const auto first = previous + step;
    if (first < 0 || first + static_cast<std::int64_t>(count) - 1 > kMostId) malformed();
    for (std::uint64_t i = 0; i < count; ++i)
      ids.push_back(static_cast<std::uint32_t>(first + static_cast<std::int64_t>(i)));
    previous = ids.back();
  }
  return ids;
}

Request Reader::request() {
  Request request;
  request.verb = checked(number(), Verb::remove_process_set);
  request.name = text();
  request.call = text();
  request.member_names = text();
  request.members.resize(length());
  for (auto& member : request.members) {
    member.dtype = checked(number(), DType::uint16);
    member.shape.resize(length());
    for (auto& extent : member.shape) extent = signed_number();
  }
  request.op = checked(number(), ReduceOp::bxor);
  request.scale.pre = real();
  request.scale.post = real();
  request.scale.divisor = signed_number();
  const int wire = small_number();
  if (wire < -1 || wire >= kDTypeCount) malformed();
  request.wire_dtype = static_cast<std::int8_t>(wire);
  request.root = small_number();
  request.on_host = number() != 0;
  request.checked = number() != 0;
  request.ranks.resize(length());
  for (auto& rank : request.ranks) rank = signed_number();
  return request;
}

}  // namespace perseus
