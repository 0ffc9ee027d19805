// A request: what it asks for, and its answer.
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

// What all requests of an instance have in common.
struct Served {
  TRITONBACKEND_ModelInstance* instance;
  const Configuration& configuration;
  const Session& session;
  TextMeter* meter;  // null where the graph takes no text
};

// An input of a request, in Triton's memory.
struct InputTensor {
  std::vector<int64_t> shape;
  const char* data = nullptr;           // all rows of a tensor of numbers
  size_t row_bytes = 0;                 // of a tensor of numbers
  std::vector<std::string_view> texts;  // all elements of a tensor of texts
  size_t row_texts = 0;                 // of a tensor of texts
  // The bytes, where Triton's memory does not hold them in one aligned piece; else null.
  std::unique_ptr<char[]> copy;
};

// Nanoseconds, by the clock of Triton's statistics.
uint64_t Now();

// When a run began, and when ONNX Runtime began and ended to compute it, by the clock of `Now`.
struct RunTimes {
  uint64_t begin_ns, compute_begin_ns, compute_end_ns;
};

// One Triton request. A run may compute all of its rows or a part of them. Without a batch the whole request
// counts as one row.
class Request {
 public:
  // Reads a request of Triton's, and owns it. Throws nothing: a request at fault is answered with an error.
  Request(const Served& served, TRITONBACKEND_Request* handle) noexcept;
  // Answers with an error if it is not answered yet.
  ~Request();

  // Answers a request with an error without reading it, where there was no memory for a Request; owns
  // `handle`.
  static void RefuseUnread(TRITONBACKEND_Request* handle) noexcept;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const std::vector<InputTensor>& inputs() const { return inputs_; }     // in the session's order
  const std::vector<bool>& wanted() const { return wanted_; }            // for each output of the session
  const std::vector<size_t>& row_tokens() const { return row_tokens_; }  // about how many tokens each row has
  bool is_batched() const { return served_.configuration.is_batched(); }
  bool is_short() const { return tokens_ <= kShortTokens; }
  bool is_answered() const { return handle_ == nullptr; }

  // Takes the outputs of the request's next rows, which begin at row `begin` of a run. Answers once it has
  // all rows.
  void Take(std::shared_ptr<const RunOutputs> outputs, size_t begin, size_t rows,
            const RunTimes& times) noexcept;

  // Answers with an error.
  void Refuse(const std::exception& error) noexcept;

  // Answers with an error if the client has cancelled the request. Returns whether it is answered, now or
  // before.
  bool IsOver() noexcept;

 private:
  // A request of up to this many tokens counts as short.
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
  void CheckTexts(size_t bytes) const;  // all texts together
  void CountTokens();
  void Write(TRITONBACKEND_Response* response, size_t output) const;
  void Answer(TRITONSERVER_Error* error) noexcept;

  const Served& served_;
  TRITONBACKEND_Request* handle_;
  std::vector<InputTensor> inputs_;
  std::vector<bool> wanted_;
  std::vector<size_t> row_tokens_;
  size_t tokens_ = 0;
  std::vector<Piece> pieces_;
  size_t rows_taken_ = 0;
  uint64_t begin_ns_, input_ns_ = 0, compute_ns_ = 0, compute_end_ns_ = 0;
};

// Consecutive rows of a request that one run computes.
struct Slice {
  std::shared_ptr<Request> request;
  size_t begin;
  size_t rows;
  size_t tokens;
  bool is_last;  // slice of its request

  // Whether the rows of both have one shape, so that one run can compute them together.
  bool FitsBeside(const Slice& other) const;
};

// Cuts a request into slices, each a whole run or a part of one.
std::vector<Slice> SlicesOf(const std::shared_ptr<Request>& request);

// The value of a graph's input in a run: the rows of all slices.
Owned<OrtValue> JoinInput(const Served& served, const std::vector<Slice>& run, size_t input);

}  // namespace sparse_serve
