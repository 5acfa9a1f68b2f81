// Tests that the timeline's file is valid after every append, and has all events of many threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "trace/json_array.h"
#include "trace/timeline.h"

namespace perseus {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++found;
  return found;
}

class Timelines : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("perseus_trace_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
};

TraceEvent event(TraceEvent::Kind kind, const std::string& track) {
  TraceEvent made;
  made.kind = kind;
  made.at = TraceEvent::Clock::now();
  made.track = track;
  if (kind == TraceEvent::Kind::begin) made.what = "allreduce";
  return made;
}

TEST_F(Timelines, TheArrayIsClosedAfterEveryAppend) {
  JsonArrayFile array(file("a.json"), "1");
  EXPECT_EQ(text_of(file("a.json")), "[\n1\n]\n");
  EXPECT_TRUE(array.append("2,\n3"));
  EXPECT_EQ(text_of(file("a.json")), "[\n1,\n2,\n3\n]\n");
  EXPECT_TRUE(array.append("4"));
  EXPECT_EQ(text_of(file("a.json")), "[\n1,\n2,\n3,\n4\n]\n");
}

TEST_F(Timelines, AFileThatCannotBeCreatedIsAnError) {
  EXPECT_THROW(JsonArrayFile(file("none/a.json"), "1"), Error);
  Timeline timeline;
  EXPECT_THROW(timeline.start(file("none/a.json"), false, {}), Error);
  EXPECT_FALSE(timeline.on());
  timeline.start(file("a.json"), false, {});
  EXPECT_TRUE(timeline.on());
}

TEST_F(Timelines, EachRankHasItsOwnFile) {
  EXPECT_EQ(timeline_path("/x.y/trace.json", 0), "/x.y/trace.json");
  EXPECT_EQ(timeline_path("/x.y/trace.json", 3), "/x.y/trace.rank3.json");
  EXPECT_EQ(timeline_path("/x.y/trace", 3), "/x.y/trace.rank3");
  EXPECT_EQ(timeline_path(".hidden", 12), ".hidden.rank12");
}

TEST_F(Timelines, ThreadsRecordWhileItStartsAndStops) {
  Timeline timeline;
  std::atomic<bool> enough{false};
  std::atomic<int> recorded{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, track = "tensor" + std::to_string(t)] {
      while (!enough) {
        if (!timeline.on()) continue;
        timeline.record(event(TraceEvent::Kind::begin, track));
        timeline.record(event(TraceEvent::Kind::end, track));
        ++recorded;
      }
    });
  }
  for (int round = 0; round < 5; ++round) {
    timeline.start(file("b.json"), true, {});
    EXPECT_THROW(timeline.start(file("none/c.json"), true, {}), Error);
    timeline.start(file("b.json"), false, {});
    EXPECT_FALSE(timeline.marks_cycles());
    // Some of the counted events may have begun before the timeline.
    for (const int before = recorded; recorded < before + 100;) std::this_thread::yield();
    timeline.stop();
    const auto text = text_of(file("b.json"));
    EXPECT_TRUE(text.starts_with("[\n{") && text.ends_with("}\n]\n"));
    EXPECT_GT(count(text, "\"ALLREDUCE\""), 0U);
  }
  enough = true;
  for (auto& thread : threads) thread.join();
  timeline.stop();
}

TEST_F(Timelines, ASecondStartContinuesInAnotherFile) {
  Timeline timeline;
  for (const auto* name : {"first", "second"}) {
    timeline.start(file(std::string(name) + ".json"), false, {});
    timeline.record(event(TraceEvent::Kind::begin, name));
    timeline.record(event(TraceEvent::Kind::end, name));
  }
  EXPECT_EQ(count(text_of(file("first.json")), "\"ALLREDUCE\""), 1U);
  timeline.stop();
  const auto second = text_of(file("second.json"));
  EXPECT_EQ(count(second, "\"ALLREDUCE\""), 1U);
  EXPECT_EQ(count(second, "first"), 0U);
  EXPECT_TRUE(second.ends_with("}\n]\n"));
}

TEST_F(Timelines, EverythingRecordedIsWritten) {
  Timeline timeline;
  timeline.start(file("d.json"), false, {.rank = 0, .size = 2, .host = "a\"b"});
  for (int i = 0; i < 500; ++i) {
    const auto name = "allreduce.noname." + std::to_string(i);
    timeline.record(event(TraceEvent::Kind::begin, name));
    timeline.record(event(TraceEvent::Kind::end, name));
    timeline.record(event(TraceEvent::Kind::end, "allreduce.never begun"));
  }
  timeline.stop();
  const auto text = text_of(file("d.json"));
  EXPECT_EQ(count(text, "\"ph\":\"B\""), 500U);
  EXPECT_EQ(count(text, "\"ph\":\"E\""), 500U);
  // Names that differ only by a counter share one track.
  EXPECT_EQ(count(text, "allreduce …"), 1U);
  EXPECT_EQ(count(text, "\"allreduce.noname.499\""), 1U);
  EXPECT_EQ(count(text, "a\\\"b"), 2U);
}

}  // namespace
}  // namespace perseus
