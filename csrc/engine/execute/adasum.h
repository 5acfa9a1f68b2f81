// Adasum, a reduction that adds orthogonal gradients and averages parallel ones.
#pragma once

#include "base/error.h"
#include "base/reduce.h"
#include "transport/transport.h"

namespace perseus {

// Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020). Two vectors become
//   (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b,
// and ranks are combined as a tree: 0 with 1, 2 with 3, …, then these pairs' results with one another. If the number of
// ranks is not a power of two, a rank without a partner enters the next level unchanged.
//
// Each piece is a vector of its own. Every rank gets a slice of all ranks' vectors once. For each level the ranks add
// up the products of their slices (three numbers for each pair and piece) and combine the slices. At the end the slices
// are gathered. Each rank thus transfers 2(n-1)/n of the data, as in the paper, on any transport and for any n.
// Products are added in float64; 16-bit values are combined in float32 and rounded once.
//
// reduction.op is ignored; its divisor is 1. Collective over the transport's group. May throw.
Status adasum(Transport& transport, const Reduction& reduction, Pieces in, Pieces out);

}  // namespace perseus
