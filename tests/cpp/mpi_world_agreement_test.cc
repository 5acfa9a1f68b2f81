// Tests that ranks which start MPI by a store agree on a world, and that malformed bytes are an error that names the
// rank.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "transport/mpi/world_agreement.h"

namespace perseus::mpi {
namespace {

// A rendezvous of two ranks, in which the other rank's bytes are `other`.
MpiRendezvous rendezvous_with(const std::string& other) {
  MpiRendezvous rendezvous;
  rendezvous.hosts = {0, 1};
  rendezvous.host_names = {"one", "two"};
  rendezvous.exchange = [other](std::string_view mine) { return std::vector{std::string(mine), other}; };
  return rendezvous;
}

RankState fresh() {
  RankState state;
  state.version = "MPICH 5";
  state.fresh_world = "a-new-world";
  return state;
}

TEST(MpiWorldAgreementTest, NewRanksUseTheNameOfTheFirst) {
  const auto agreed = agree(rendezvous_with("MPICH 5\n\n-1\nanother-world\n"), fresh());
  EXPECT_EQ(agreed.world, "a-new-world");
  EXPECT_TRUE(agreed.ranks.empty());
}

TEST(MpiWorldAgreementTest, RanksOfOneWorldContinueInIt) {
  auto mine = fresh();
  mine.world = "world";
  mine.rank_in_world = 1;
  EXPECT_EQ(agree(rendezvous_with("MPICH 5\nworld\n3\nanother-world\n"), mine).ranks, (std::vector{1, 3}));
}

TEST(MpiWorldAgreementTest, MalformedBytesAreAnErrorThatNamesTheRank) {
  for (const std::string other :
       {"", "1suesrep", "MPICH 5", "MPICH 5\n\n-1\nanother-world", "MPICH 5\n\nx\nanother-world\n",
        "MPICH 5\n\n-1x\nanother-world\n", "MPICH 5\n\n-2\nanother-world\n", "MPICH 5\nworld\n-1\nanother-world\n",
        "MPICH 5\n\n3\nanother-world\n", "MPICH 5\n\n-1\n\n"}) {
    try {
      agree(rendezvous_with(other), fresh());
      ADD_FAILURE() << other;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::transport);
      EXPECT_NE(std::string(error.what()).find("rank 1 on two sent"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace perseus::mpi
