// Compares the type of a function pointer of this library with that of a function in a vendor's header.
#pragma once

#include <type_traits>

namespace perseus::testing {

// Handles are pointers here, and enumerations are integers, so types need only be passed in the same way.
template <class Ours, class Theirs>
constexpr bool same_way() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    // More than 16 bytes are passed in memory; a callee reads the beginning.
    return std::is_trivially_copyable_v<Theirs> && sizeof(Theirs) > 16 && sizeof(Theirs) <= sizeof(Ours);
  } else if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else {
    return std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  }
}

// An integer argument may be wider than what the callee reads: it is passed in a register or a slot of 8 bytes.
template <class Ours, class Theirs>
constexpr bool same_argument() {
  if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
    return sizeof(Ours) >= sizeof(Theirs);
  } else {
    return same_way<Ours, Theirs>();
  }
}

template <class Ours, class Theirs>
struct SameCall : std::false_type {};

template <class OurResult, class... Ours, class TheirResult, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<same_way<OurResult, TheirResult>() && (same_argument<Ours, Theirs>() && ...)> {};

}  // namespace perseus::testing
