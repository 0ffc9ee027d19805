// A request: what it asks, and its answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "onnxruntime_backend/configuration.h"
#include "onnxruntime_backend/session.h"
#include "onnxruntime_backend/text_meter.h"
#include "onnxruntime_backend/triton_abi.h"

namespace sparse_serve {

// What the requests of an instance are read and answered by.
struct Served {
  TRITONBACKEND_ModelInstance* instance;
  const Configuration& configuration;
  const Session& session;
  TextMeter* meter;  // null where the graph takes no text
};

// An input of a request, in Triton's memory.
struct InputTensor {
  std::vector<int64_t> shape;
  const char* data = nullptr;           // of a tensor that is no text, all its rows
  size_t row_bytes = 0;                 // likewise
  std::vector<std::string_view> texts;  // of one that is, all its elements
  size_t row_texts = 0;
  std::unique_ptr<char[]> copy;  // of the bytes, where Triton's memory does not have them as they are needed
};

// Nanoseconds of the clock that Triton's statistics go by.
uint64_t Now();

// When a run began, and when ONNX Runtime had its inputs and had computed it; by the same clock.
struct RunTimes {
  uint64_t begin_ns, compute_begin_ns, compute_end_ns;
};

// Has rows, of which a run computes some or all. Without a batch all of it counts as one row.
class Request {
 public:
  // Reads what Triton hands over, and owns it. Throws nothing: what is at fault is answered with an error.
  Request(const Served& served, TRITONBACKEND_Request* handle) noexcept;
  // Answers with an error what is not answered.
  ~Request();

  // Answers with an error, unread, a request that there was no room for; owns it.
  static void GiveUp(TRITONBACKEND_Request* handle) noexcept;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const std::vector<InputTensor>& inputs() const { return inputs_; }     // in the session's order
  const std::vector<bool>& wanted() const { return wanted_; }            // for each output of the session
  const std::vector<size_t>& row_tokens() const { return row_tokens_; }  // about how many each row has
  bool is_batched() const { return served_.configuration.is_batched(); }
  bool is_short() const { return tokens_ <= kShortTokens; }
  bool is_answered() const { return handle_ == nullptr; }

  // Takes the outputs of its next rows, which begin at row `begin` of a run; answers when they were the last.
  void Take(std::shared_ptr<const RunOutputs> outputs, size_t begin, size_t rows,
            const RunTimes& times) noexcept;

  // Answers with an error.
  void Refuse(const std::exception& error) noexcept;

  // Answers with an error if its client has given it up. Returns whether it is answered, now or before.
  bool IsOver() noexcept;

 private:
  // Others can wait for one of so many.
  static constexpr size_t kShortTokens = 256;

  struct Piece {
    std::shared_ptr<const RunOutputs> outputs;
    size_t begin;
    size_t rows;
  };

  void Read();
  InputTensor ReadInput(const GraphTensor& tensor);
  size_t CheckedRows(const GraphTensor& tensor, const std::vector<int64_t>& shape) const;
  void CheckBytes(const GraphTensor& tensor, size_t elements, size_t bytes) const;
  void CheckAxes() const;
  void CheckLimits() const;
  void CheckText(const std::string& input, size_t bytes) const;
  void CheckTexts(size_t bytes) const;  // all of them
  void CountTokens();
  void Write(TRITONBACKEND_Response* response, size_t output) const;
  void Answer(TRITONSERVER_Error* error) noexcept;

  const Served& served_;
  TRITONBACKEND_Request* handle_;
  std::vector<InputTensor> inputs_;
  std::vector<bool> wanted_;
  std::vector<size_t> row_tokens_{0};
  size_t tokens_ = 0;
  std::vector<Piece> pieces_;
  size_t rows_taken_ = 0;
  uint64_t begin_ns_, input_ns_ = 0, compute_ns_ = 0, compute_end_ns_ = 0;
};

// Rows of a request that are computed at a time.
struct Slice {
  std::shared_ptr<Request> request;
  size_t begin;
  size_t rows;
  size_t tokens;
  bool is_last;  // of its request

  // Whether the rows of both have one shape, so that one run can have them.
  bool FitsBeside(const Slice& other) const;
};

// A request in slices that each are a run, or fit one.
std::vector<Slice> SlicesOf(const std::shared_ptr<Request>& request);

// The value of an input of the graph for a run: the rows of all its slices.
Owned<OrtValue> JoinInput(const Served& served, const std::vector<Slice>& run, size_t input);

}  // namespace sparse_serve
