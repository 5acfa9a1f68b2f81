// Jobs of ranks that are threads, connected by the fake library.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "transport_world.h"
#include "xccl_fake.h"

namespace perseus::testing {

inline xccl::Participant joining(std::shared_ptr<const xccl::Library> library, bool on_stream = false) {
  xccl::Participant mine{std::move(library), "", std::make_shared<xccl::HostDevice>()};
  if (on_stream) mine.device = std::make_shared<FakeDevice>(/*reduces=*/false);
  return mine;
}

inline std::vector<int> everybody(const World& world) {
  std::vector<int> members(static_cast<std::size_t>(world.size));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

inline std::unique_ptr<xccl::XcclTransport> connect_all(World& world, const xccl::Participant& mine,
                                                        const xccl::Options& options = {}) {
  return xccl::connect(mine, everybody(world), world.rank, world.exchange, world.liveness, options);
}

inline Status sum(Transport& transport, std::vector<float>& values, const Scale& scale = {}) {
  const Reduction reduction{DType::float32, DType::float32, ReduceOp::sum, scale};
  const Piece piece{values.data(), static_cast<std::int64_t>(values.size())};
  return transport.allreduce(reduction, {&piece, 1}, {&piece, 1});
}

inline void expect_text(const Status& status, ErrorKind kind, const std::string& part) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.kind(), kind) << status.text();
  EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
}

// Returns the text of the Error that `body` throws.
template <class Body>
std::string thrown_by(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace perseus::testing
