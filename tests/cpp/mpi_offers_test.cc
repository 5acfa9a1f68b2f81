// Ranks that start MPI by a store describe their MPI to each other; bytes of another kind are an error that names the
// rank.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "transport/mpi/offers.h"

namespace perseus::mpi {
namespace {

// Of two ranks: this one's bytes, and `other`.
MpiMeeting meeting_with(const std::string& other) {
  MpiMeeting meeting;
  meeting.hosts = {0, 1};
  meeting.host_names = {"one", "two"};
  meeting.exchange = [other](std::string_view mine) { return std::vector{std::string(mine), other}; };
  return meeting;
}

Offer fresh() {
  Offer offer;
  offer.version = "MPICH 5";
  offer.fresh_world = "a-new-world";
  return offer;
}

TEST(MpiOffers, FreshRanksTakeTheNameOfTheFirst) {
  const auto agreed = agree(meeting_with("MPICH 5\n\n-1\nanother-world\n"), fresh());
  EXPECT_EQ(agreed.world, "a-new-world");
  EXPECT_TRUE(agreed.ranks.empty());
}

TEST(MpiOffers, RanksOfOneWorldGoOnInIt) {
  auto mine = fresh();
  mine.world = "world";
  mine.rank_in_world = 1;
  EXPECT_EQ(agree(meeting_with("MPICH 5\nworld\n3\nanother-world\n"), mine).ranks, (std::vector{1, 3}));
}

TEST(MpiOffers, BytesOfAnotherKindAreAnErrorThatNamesTheRank) {
  for (const std::string other :
       {"", "1suesrep", "MPICH 5", "MPICH 5\n\n-1\nanother-world", "MPICH 5\n\nx\nanother-world\n",
        "MPICH 5\n\n-1x\nanother-world\n", "MPICH 5\n\n-2\nanother-world\n", "MPICH 5\nworld\n-1\nanother-world\n",
        "MPICH 5\n\n3\nanother-world\n", "MPICH 5\n\n-1\n\n"}) {
    try {
      agree(meeting_with(other), fresh());
      ADD_FAILURE() << other;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::transport);
      EXPECT_NE(std::string(error.what()).find("rank 1 on two sent"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace perseus::mpi
