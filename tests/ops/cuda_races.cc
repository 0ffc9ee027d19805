// The attention kernels for GPUs with each warp of a block on a thread of its own, to be built with
// ThreadSanitizer: a Sync that is missing is a race. Copies to shared memory are made as late as they may be.
// Prints where an answer is not that of one warp after the other, which cuda_host.cc gives, and exits with 1.
// test_cuda_races.py compiles and runs it.
#include <cmath>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "axis_attention/axis_launch_cuda.h"
#include "axis_mask/axis_mask_cuda.h"
#include "softmax_attention/softmax_attention_cuda.h"
#include "sparsegen_attention/sparsegen_attention_cuda.h"

using namespace sparse_ops;

namespace {

int failed = 0;

// Runs every block of a launch, its warps beside each other.
template <class AnyBlock, class Tile>
void RunBlocks(int64_t blocks, int64_t shared_bytes, const Tile& tile) {
  struct alignas(16) Sixteen {
    unsigned char bytes[16];
  };
  std::vector<Sixteen> memory(static_cast<size_t>(shared_bytes / 16));
  cuda::BlockThreads threads;
  pthread_barrier_init(&threads.barrier, nullptr, AnyBlock::kWarps);
  cuda::block_threads = &threads;
  std::vector<std::thread> warps;
  for (int warp = 0; warp < AnyBlock::kWarps; ++warp) {
    warps.emplace_back([&, warp] {
      cuda::own_warp = warp;
      for (int64_t block = 0; block < blocks; ++block) tile(block, static_cast<void*>(memory.data()));
    });
  }
  for (std::thread& warp : warps) warp.join();
  pthread_barrier_destroy(&threads.barrier);
}

// Two sequences of `keys` and 70 tokens, one head: their outputs by the way that is asked for, or by a
// softmax.
template <class Element, int kWidth>
class Problem {
 public:
  explicit Problem(int32_t keys) : borders_{0, keys, keys + 70}, rows_(keys + 70) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* tensor : {&query_, &key_, &value_}) {
      tensor->resize(static_cast<size_t>(rows_ * kWidth));
      for (Element& element : *tensor) cuda::FromFloat(1.5f * normal(random), &element);
    }
    output_.resize(query_.size());
    support_.resize(static_cast<size_t>(rows_));
  }

  template <bool kResident>
  const std::vector<Element>& Sparsegen(const cuda::SparsegenLimits& limits) {
    using AnyBlock = typename cuda::SparsegenKind<Element, kResident>::AnyBlock;
    const auto launch = LaunchOf<AnyBlock>();
    RunBlocks<AnyBlock>(
        launch.blocks(), cuda::SparsegenMemory<Element, kWidth, kResident>::Bytes(limits),
        [&](int64_t block, void* memory) {
          cuda::SparsegenTile<Element, kWidth, kResident>(launch, limits, memory).Attend(block);
        });
    return output_;
  }

  const std::vector<Element>& Softmax() {
    const auto launch = LaunchOf<cuda::AttentionBlock>();
    RunBlocks<cuda::AttentionBlock>(launch.blocks(), cuda::SoftmaxMemory<Element, kWidth>::kBytes,
                                    [&](int64_t block, void* memory) {
                                      cuda::SoftmaxTile<Element, kWidth>(launch, memory).Attend(block);
                                    });
    return output_;
  }

 private:
  template <class AnyBlock>
  cuda::AttentionLaunch<Element> LaunchOf() {
    cuda::AttentionLaunch<Element> launch{};
    launch.tensors = {query_.data(),
                      key_.data(),
                      value_.data(),
                      output_.data(),
                      support_.data(),
                      1,
                      kWidth,
                      1.0f / std::sqrt(static_cast<float>(kWidth)),
                      5.0f};
    launch.borders = {borders_, borders_, 2, rows_, rows_};
    launch.aligned = true;
    launch.tiles = cuda::QueryTileCount<AnyBlock>(launch.borders);
    return launch;
  }

  const int32_t borders_[3];
  const int64_t rows_;
  std::vector<Element> query_, key_, value_, output_;
  std::vector<int32_t> support_;
};

template <class Element>
void ExpectClose(const char* what, const std::vector<Element>& found, const std::vector<Element>& expected) {
  float largest = 0.0f;
  for (size_t i = 0; i < found.size(); ++i) {
    const float difference = std::fabs(cuda::ToFloat(found[i]) - cuda::ToFloat(expected[i]));
    largest = difference <= largest ? largest : difference;
  }
  if (largest < 0.02f) return;
  std::printf("%s differs by %g\n", what, static_cast<double>(largest));
  ++failed;
}

template <class Element, int kWidth>
void CheckWays(int32_t keys) {
  Problem<Element, kWidth> problem(keys);
  const std::vector<Element> dense = problem.template Sparsegen<false>({-1, keys + 70, false, 0});
  constexpr int kSlots = cuda::SparsegenKind<Element, false>::kMostSlots;
  ExpectClose("a list", problem.template Sparsegen<false>({-1, keys + 70, false, kSlots}), dense);
  const int64_t resident = cuda::RoundUp(keys < 70 ? 70 : keys, cuda::kTileKeys);
  ExpectClose("resident", problem.template Sparsegen<true>({-1, resident, true, 0}), dense);
  problem.Softmax();
}

// Full rows that the warps of a block share, and ordinary ones, with keys drawn for them.
class AxisDevice {
 public:
  int32_t* Scratch(int64_t words) {
    scratch_.resize(static_cast<size_t>(words));
    return scratch_.data();
  }
  void PlanBorders(const cuda::AxisPairs& pairs, const cuda::Offsets& offsets) {
    cuda::PlanBorders(cuda::Warp(0), pairs, offsets);
  }
  void AddOffsets(const cuda::AxisPairs&, const cuda::Offsets&) {}
  void PlanSequences(const cuda::AxisPairs& pairs) {
    for (int32_t s = 0; s < pairs.sizes.sequences; ++s) cuda::PlanSequence(cuda::Warp(0), pairs, s);
  }
  template <class Element, int kPadded, bool kVector, bool kSparsegen>
  void Attend(const PackedAttention<Element>& tensors, const cuda::AxisPairs& pairs) {
    if constexpr (kPadded == 32 && kVector) {
      const int64_t bytes = cuda::AxisMemoryOf<kPadded, kSparsegen>(pairs.random_keys).Words() * int64_t{4};
      RunBlocks<cuda::AttentionBlock>(1 + pairs.sizes.Groups(), bytes, [&](int64_t index, void* memory) {
        const cuda::AxisBlock<Element, kPadded, kVector, kSparsegen> block(tensors, pairs,
                                                                           static_cast<float*>(memory));
        if (index == 0) return block.AttendFull(0, 1);
        block.AttendGroup(index - 1);
      });
    }
  }

 private:
  std::vector<int32_t> scratch_;
};

void CheckAxis(bool sparsegen, int64_t random_keys) {
  constexpr int64_t kRows = 300, kWidth = 32;
  std::vector<BFloat16> tensor(kRows * kWidth), output(tensor.size());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (BFloat16& element : tensor) cuda::FromFloat(normal(random), &element);
  std::vector<int32_t> support(kRows);
  std::vector<uint8_t> is_on(kRows);
  for (size_t i = 0; i < kRows; i += 9) is_on[i] = 1;
  const int32_t borders[] = {0, 200, kRows};
  AxisDevice device;
  const PackedAttention<BFloat16> tensors{
      tensor.data(), tensor.data(), tensor.data(), output.data(), support.data(), 1, kWidth, 0.2f, 5.0f};
  const cuda::AxisInputs inputs{2, kRows, kRows, borders, borders, nullptr, is_on.data(), is_on.data()};
  cuda::AxisLaunch<AxisDevice, BFloat16>(device, tensors, inputs, {{0, 1, 90}, random_keys, 7}, sparsegen);
}

}  // namespace

int main() {
  CheckWays<Half, 64>(200);
  CheckWays<float, 32>(200);
  CheckAxis(false, 3);
  CheckAxis(true, 40);
  return failed == 0 ? 0 : 1;
}
