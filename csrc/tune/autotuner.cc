#include "tune/autotuner.h"

#include <utility>
#include <vector>

#include "base/log.h"

namespace perseus {

namespace {

// After this time without its marker, the tuner assumes that the marker belonged to another part of the program.
constexpr std::chrono::seconds kMarkerLost{20};
constexpr std::chrono::seconds kSampleWithoutMarker{2};
constexpr std::size_t kMostSeen = 1U << 16;

// Returns powers of two, because one connection more or less makes no measurable difference.
std::vector<std::int64_t> fewer_than(std::int64_t streams) {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = 1; count < streams; count *= 2) counts.push_back(count);
  return counts;
}

Search::Candidates candidates_for(const Tunables& start, const std::array<bool, kTunables>& fixed) {
  constexpr std::int64_t kMiB = 1 << 20;
  const auto chunk = value_of(start, Tunable::chunk_bytes);
  Search::Candidates candidates = {{
      {kMiB / 4, 4 * kMiB, 16 * kMiB, 256 * kMiB},
      {0, 5, 100},
      {chunk / 4, chunk / 2, chunk * 2, chunk * 4},
      fewer_than(value_of(start, Tunable::streams)),
  }};
  for (std::size_t i = 0; i < kTunables; ++i) {
    if (fixed[i]) candidates[i].clear();
  }
  // The transport has no chunk size.
  if (chunk == 0) candidates[static_cast<std::size_t>(Tunable::chunk_bytes)].clear();
  return candidates;
}

double seconds_between(Autotuner::Clock::time_point begin, Autotuner::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Autotuner::Autotuner(AutotuneOptions options, const Tunables& start)
    : options_(std::move(options)), search_(start, candidates_for(start, options_.fixed)), in_use_(start) {
  tell_what_is_tried();
  if (options_.log.empty()) return;
  log_.open(options_.log, std::ios::trunc);
  if (!log_) {
    log(LogLevel::error, "the autotuning log cannot be written to " + options_.log + "; tuning continues without it");
    return;
  }
  log_ << "sample";
  for (const auto name : kTunableNames) log_ << "," << name;
  log_ << ",steps,bytes,seconds,bytes_per_second,what\n" << std::flush;
}

Autotuner::~Autotuner() {
  if (search_.finished()) return;
  const auto needed = options_.warmup_samples + search_.most_samples();
  tell("autotuning has not ended: the job was too short, with " + std::to_string(sample_) + " of at most " +
       std::to_string(needed) + " samples. Train for " + std::to_string(needed * options_.steps_per_sample) +
       " steps or more, or set PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE to less than " +
       std::to_string(options_.steps_per_sample));
}

void Autotuner::tell(const std::string& text) const {
  if (options_.is_asked_for) {
    announce(text);
  } else {
    log(LogLevel::info, text);
  }
}

void Autotuner::tell_what_is_tried() const {
  std::string text = "autotuning tries";
  for (std::size_t i = 0; i < kTunables; ++i) {
    if (search_.candidates()[i].empty()) continue;
    text += " " + std::string(kTunableNames[i]) + " " + std::to_string(in_use_[i]) + " (now)";
    for (const auto value : search_.candidates()[i]) text += ", " + std::to_string(value);
    text += ';';
  }
  tell(text + " at most " + std::to_string(options_.warmup_samples + search_.most_samples()) + " samples of " +
       std::to_string(options_.steps_per_sample) + " steps");
}

std::optional<Tunables> Autotuner::executed(const std::string& name, std::int64_t bytes, Clock::time_point now) {
  if (waiting_ || search_.finished()) return std::nullopt;
  const bool step = marks_a_step(name, now);
  if (!sampling_) {
    // Measurement begins at the begin of a step, or at any time if steps cannot be detected.
    if (!step && !marker_.empty()) return std::nullopt;
    sampling_ = true;
    began_ = now;
    steps_ = 0;
    bytes_ = 0;
    return std::nullopt;
  }
  bytes_ += bytes;
  steps_ += step ? 1 : 0;
  const auto took = now - began_;
  const bool over = marker_.empty() ? took >= kSampleWithoutMarker : steps_ >= options_.steps_per_sample;
  return over && took.count() > 0 ? end_sample(seconds_between(began_, now)) : std::nullopt;
}

bool Autotuner::marks_a_step(const std::string& name, Clock::time_point now) {
  if (marker_.empty() || now - marked_ > kMarkerLost) {
    if (!marker_.empty()) sampling_ = false;
    marker_.clear();
    if (seen_.size() >= kMostSeen) seen_.clear();
    if (seen_.insert(name).second) return false;
    // The measurement so far began in the middle of a step.
    marker_ = name;
    sampling_ = false;
    seen_.clear();
  }
  if (name != marker_) return false;
  marked_ = now;
  return true;
}

std::optional<Tunables> Autotuner::end_sample(double seconds) {
  sampling_ = false;
  const double score = static_cast<double>(bytes_) / seconds;
  const bool warmup = sample_++ < options_.warmup_samples;
  write_log(seconds, score, warmup ? "warmup" : search_.comparing() ? "comparison" : "trial");
  if (warmup) return std::nullopt;
  search_.add(score);
  if (search_.finished()) {
    std::string text = "autotuning has ended and keeps";
    in_use_ = search_.trying();
    for (std::size_t i = 0; i < kTunables; ++i) {
      text += (i == 0 ? " " : ", ") + std::string(kTunableNames[i]) + " " + std::to_string(in_use_[i]);
    }
    tell(text);
    steps_ = bytes_ = 0;
    write_log(0, 0, "kept");
    waiting_ = true;
    return in_use_;
  }
  if (search_.trying() == in_use_) return std::nullopt;
  waiting_ = true;
  return in_use_ = search_.trying();
}

void Autotuner::write_log(double seconds, double score, const char* what) {
  if (!log_.is_open()) return;
  log_ << sample_;
  for (const auto value : in_use_) log_ << "," << value;
  log_ << "," << steps_ << "," << bytes_ << "," << seconds << "," << static_cast<std::int64_t>(score) << "," << what
       << "\n"
       << std::flush;
  if (log_) return;
  log_.close();
  log(LogLevel::error, "the autotuning log ends here: " + options_.log + " cannot be written any more; check the disk");
}

}  // namespace perseus
