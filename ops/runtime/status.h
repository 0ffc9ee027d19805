// Errors inside the library are exceptions; they become an OrtStatus at the C boundary and never cross it.
#pragma once

#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/ort_abi.h"

namespace sparse_ops {

// An error of the caller: in an attribute, a shape or a value.
class InvalidArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using OwnedStatus = std::unique_ptr<OrtStatus, decltype(OrtApi::ReleaseStatus)>;

// An error status that ONNX Runtime returned. It is released with this object unless it is handed back.
class OrtError : public std::exception {
 public:
  explicit OrtError(OwnedStatus status) : status_(std::move(status)) {}
  // An exception must be copyable: the copy takes the status over. (A std::shared_ptr would need a symbol
  // that glibc has only since 2.32.)
  OrtError(const OrtError& other) noexcept : std::exception(other), status_(std::move(other.status_)) {}
  OrtError& operator=(const OrtError&) = delete;
  const char* what() const noexcept override { return "ONNX Runtime answered an error status"; }

  // Hands the status over; the error holds none afterwards.
  OrtStatus* release() const noexcept { return status_.release(); }

 private:
  mutable OwnedStatus status_;
};

inline void Check(const OrtApi& api, OrtStatus* status) {
  if (status != nullptr) throw OrtError(OwnedStatus(status, api.ReleaseStatus));
}

template <class... Parts>
std::string Message(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class Function>
OrtStatus* StatusOf(const OrtApi& api, const Function& function) noexcept {
  try {
    function();
    return nullptr;
  } catch (const OrtError& error) {
    return error.release();
  } catch (const InvalidArgument& error) {
    return api.CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "unknown error");
  }
}

}  // namespace sparse_ops
